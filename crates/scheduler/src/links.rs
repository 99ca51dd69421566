//! The links into a target, by the place of their source. Each decision goes through all that have work, in this order:
//! so they lie one after the other.

use crate::state::LinkState;

#[derive(Default)]
pub(crate) struct Links {
    /// In their order, and at the same place the link.
    sources: Vec<u32>,
    rows: Vec<LinkState>,
}

impl Links {
    pub(crate) fn get(&self, source: u32) -> Option<&LinkState> {
        self.sources.binary_search(&source).ok().map(|at| &self.rows[at])
    }

    pub(crate) fn get_mut(&mut self, source: u32) -> Option<&mut LinkState> {
        self.sources.binary_search(&source).ok().map(|at| &mut self.rows[at])
    }

    /// The link, which is a new one if there was none.
    pub(crate) fn row(&mut self, source: u32) -> &mut LinkState {
        let at = self.sources.binary_search(&source).unwrap_or_else(|at| {
            self.sources.insert(at, source);
            self.rows.insert(at, LinkState::default());
            at
        });
        &mut self.rows[at]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &LinkState)> {
        self.sources.iter().copied().zip(&self.rows)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut LinkState)> {
        self.sources.iter().copied().zip(&mut self.rows)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &LinkState> {
        self.rows.iter()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut LinkState> {
        self.rows.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_stay_in_the_order_of_their_sources() {
        let mut links = Links::default();
        for source in [7, 2, 9, 2, 4] {
            links.row(source).files += source;
        }
        assert_eq!(
            links.iter().map(|(source, link)| (source, link.files)).collect::<Vec<_>>(),
            [(2, 4), (4, 4), (7, 7), (9, 9)]
        );
        assert_eq!(links.get(9).map(|link| link.files), Some(9));
        assert!(links.get(3).is_none() && links.get_mut(10).is_none());
    }
}
