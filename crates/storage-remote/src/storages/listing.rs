//! The members of one collection in the order of their names, held in little memory: about 40 bytes each, and
//! their names.

use std::cmp::Ordering;

use longhaul_storage::Identity;

/// Bytes of all names together: a million names of an ordinary length are a tenth of it.
const NAMES_BYTES_MAX: usize = 256 << 20;
const MEMBERS_MAX: usize = 4_000_000;

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemberKind {
    Collection,
    File(Identity),
    /// Something of a name that the storage cannot use.
    Unusable,
}

/// One member of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedMember<'a> {
    pub(super) name: &'a str,
    pub(super) kind: MemberKind,
}

#[derive(Default)]
pub(super) struct Listing {
    /// One after the other.
    names: String,
    members: Vec<Member>,
}

struct Member {
    name_start: u32,
    name_len: u32,
    kind: MemberKind,
}

impl Listing {
    /// # Errors
    /// The collection has too many members; the text is fit to be shown.
    pub(super) fn add(&mut self, name: &str, kind: MemberKind) -> Result<(), String> {
        if self.members.len() >= MEMBERS_MAX {
            return Err(format!("it has more than {MEMBERS_MAX} members"));
        }
        if self.names.len() + name.len() > NAMES_BYTES_MAX {
            return Err(format!("its members have more than {NAMES_BYTES_MAX} bytes of names"));
        }
        // Both fit: there are fewer bytes of names.
        self.members.push(Member { name_start: self.names.len() as u32, name_len: name.len() as u32, kind });
        self.names.push_str(name);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The members in the order of names.
    pub(super) fn sorted(&mut self) -> impl Iterator<Item = ListedMember<'_>> {
        let names = &self.names;
        let by_name = |one: &Member, other: &Member| -> Ordering { one.name(names).cmp(other.name(names)) };
        self.members.sort_unstable_by(by_name);
        self.members.iter().map(|member| ListedMember { name: member.name(names), kind: member.kind.clone() })
    }
}

impl Member {
    fn name<'a>(&self, names: &'a str) -> &'a str {
        let start = self.name_start as usize;
        &names[start..start + self.name_len as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_in_the_order_of_names() {
        let file = |size| MemberKind::File(Identity { size, mtime_ns: 1, inode: 2 });
        let mut listing = Listing::default();
        assert!(listing.is_empty());
        for (name, kind) in
            [("é", file(3)), ("a", MemberKind::Collection), ("ab", file(1)), ("Z", MemberKind::Unusable)]
        {
            listing.add(name, kind).unwrap();
        }
        let sorted: Vec<_> = listing.sorted().map(|member| (member.name, member.kind)).collect();
        let expected =
            [("Z", MemberKind::Unusable), ("a", MemberKind::Collection), ("ab", file(1)), ("é", file(3))];
        assert_eq!(sorted, expected);
    }

    #[test]
    fn a_million_members_take_little_memory() {
        assert!(size_of::<Member>() <= 40, "{}", size_of::<Member>());
    }

    #[test]
    fn there_is_a_limit_of_members() {
        let mut listing = Listing::default();
        (0..MEMBERS_MAX).for_each(|_| listing.add("", MemberKind::Collection).unwrap());
        assert!(listing.add("", MemberKind::Collection).unwrap_err().contains("members"));
    }
}
