//! The state of each limit by its scope: tables indexed by storage, community and site, because limits are
//! looked at for each source of each file that could be leased, but for kinds of which there are none. Only
//! the limits of single links, of which there are few, are searched for.

use std::collections::BTreeMap;

use crate::limits::{LimitKind, LimitScope, LimitState};

/// The scopes that have a table, in the order of the tables.
const SCOPES: [fn(u32) -> LimitScope; 5] =
    [LimitScope::Into, LimitScope::Out, LimitScope::Community, LimitScope::IntoSite, LimitScope::OutOfSite];

#[derive(Default)]
pub(crate) struct LimitStates {
    links: BTreeMap<(u32, u32), LimitState>,
    tables: [Vec<Option<LimitState>>; SCOPES.len()],
    /// Limits of each kind.
    counts: [usize; LimitKind::ALL.len()],
    kinds: LimitKinds,
}

/// A set of kinds of limits, which yields them in their order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LimitKinds(u8);

impl LimitKinds {
    /// Whether it has no kinds but those of sites, which are rates.
    #[inline]
    pub(crate) fn are_of_sites(self) -> bool {
        self.0 & !(1 << LimitKind::IntoSite as u8 | 1 << LimitKind::OutOfSite as u8) == 0
    }

    fn set(&mut self, kind: LimitKind, is_there: bool) {
        let bit = 1 << kind as u8;
        self.0 = if is_there { self.0 | bit } else { self.0 & !bit };
    }
}

impl Iterator for LimitKinds {
    type Item = LimitKind;

    #[inline]
    fn next(&mut self) -> Option<LimitKind> {
        let kind = *LimitKind::ALL.get(self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(kind)
    }
}

/// Where the state of a limit is kept.
enum Slot {
    Link(u32, u32),
    Table(usize, usize),
}

#[inline]
fn slot(scope: LimitScope) -> Slot {
    match scope {
        LimitScope::Link(source, target) => Slot::Link(source, target),
        LimitScope::Into(storage) => Slot::Table(0, storage as usize),
        LimitScope::Out(storage) => Slot::Table(1, storage as usize),
        LimitScope::Community(community) => Slot::Table(2, community as usize),
        LimitScope::IntoSite(site) => Slot::Table(3, site as usize),
        LimitScope::OutOfSite(site) => Slot::Table(4, site as usize),
    }
}

impl LimitStates {
    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.0 == 0
    }

    /// The kinds of which there are limits.
    #[inline]
    pub(crate) fn kinds(&self) -> LimitKinds {
        self.kinds
    }

    #[inline]
    pub(crate) fn get(&self, scope: LimitScope) -> Option<&LimitState> {
        match slot(scope) {
            Slot::Link(source, target) => self.links.get(&(source, target)),
            Slot::Table(table, index) => self.tables[table].get(index)?.as_ref(),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, scope: LimitScope) -> Option<&mut LimitState> {
        match slot(scope) {
            Slot::Link(source, target) => self.links.get_mut(&(source, target)),
            Slot::Table(table, index) => self.tables[table].get_mut(index)?.as_mut(),
        }
    }

    pub(crate) fn insert(&mut self, scope: LimitScope, state: LimitState) {
        let former = match slot(scope) {
            Slot::Link(source, target) => self.links.insert((source, target), state),
            Slot::Table(table, index) => {
                let table = &mut self.tables[table];
                if table.len() <= index {
                    table.resize(index + 1, None);
                }
                table[index].replace(state)
            }
        };
        self.count(scope.kind(), usize::from(former.is_none()), 0);
    }

    pub(crate) fn remove(&mut self, scope: LimitScope) {
        let former = match slot(scope) {
            Slot::Link(source, target) => self.links.remove(&(source, target)),
            Slot::Table(table, index) => self.tables[table].get_mut(index).and_then(Option::take),
        };
        self.count(scope.kind(), 0, usize::from(former.is_some()));
    }

    fn count(&mut self, kind: LimitKind, added: usize, removed: usize) {
        let count = &mut self.counts[kind as usize];
        *count = *count + added - removed;
        self.kinds.set(kind, *count > 0);
    }

    /// All that are set, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LimitScope, &LimitState)> {
        let links =
            self.links.iter().map(|(&(source, target), state)| (LimitScope::Link(source, target), state));
        let tables = SCOPES.iter().zip(&self.tables).flat_map(|(scope, table)| {
            let indexed = (0..).zip(table);
            indexed.filter_map(|(index, state)| Some((scope(index), state.as_ref()?)))
        });
        links.chain(tables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Timestamp;

    #[test]
    fn each_scope_keeps_its_own_state() {
        let mut states = LimitStates::default();
        let scopes: Vec<LimitScope> =
            SCOPES.iter().map(|scope| scope(3)).chain([LimitScope::Link(3, 3)]).collect();
        let state = |index: usize| LimitState {
            paid_until: Timestamp::from_seconds(index as i64 + 1),
            ..LimitState::default()
        };
        assert!(states.is_empty());
        for (index, &scope) in scopes.iter().enumerate() {
            assert!(states.get(scope).is_none());
            states.insert(scope, LimitState::default());
            states.insert(scope, state(index));
        }
        for (index, &scope) in scopes.iter().enumerate() {
            assert_eq!(states.get(scope).map(|state| state.paid_until), Some(state(index).paid_until));
            assert_eq!(states.get_mut(scope).map(|state| state.paid_until), Some(state(index).paid_until));
        }
        assert_eq!(states.kinds().collect::<Vec<_>>(), LimitKind::ALL);
        assert!(states.get(LimitScope::Into(2)).is_none() && states.get(LimitScope::Into(9)).is_none());
        let mut found: Vec<LimitScope> = states.iter().map(|(scope, _)| scope).collect();
        found.sort();
        let mut expected = scopes.clone();
        expected.sort();
        assert_eq!(found, expected);
        for &scope in &scopes {
            assert!(!states.is_empty());
            states.remove(scope);
            states.remove(scope);
            assert!(states.get(scope).is_none() && states.kinds().all(|kind| kind != scope.kind()));
        }
        assert!(states.is_empty() && states.iter().next().is_none());
    }
}
