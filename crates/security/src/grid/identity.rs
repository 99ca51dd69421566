//! The identity of a grid user from a verified chain: subject, VOMS attributes, delegation id.

use aws_lc_rs::digest;
use longhaul_model::Timestamp;
use longhaul_model::hex;

/// Hexadecimal digits of the ids of delegations, as clients of FTS know them.
const DELEGATION_ID_DIGITS: usize = 16;

/// A user, from a chain that [`super::GridTrust`] verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridIdentity {
    /// The subject of the end-entity certificate, without what proxies add: `/DC=org/DC=example/CN=alice`.
    pub subject: String,
    /// The subject of the issuing authority: a subject is unique together with it only.
    pub issuer: String,
    /// Proxies between the end-entity certificate and the one shown.
    pub proxies: usize,
    /// One of the proxies is limited: it may move data but not submit computing jobs.
    pub limited: bool,
    /// Attributes of virtual organisations in the order of the attribute certificate, as they stand there:
    /// `/atlas/prod/Role=production/Capability=NULL`.
    pub fqans: Vec<String>,
    /// Why some attributes were not accepted, for logs and for the user.
    pub fqan_problem: Option<String>,
    /// When the first certificate of the chain expires.
    pub not_after: Timestamp,
    /// Size of the key of the presented certificate, if it is an RSA key.
    pub rsa_bits: Option<u32>,
    /// As it was shown, its holder first.
    pub chain_pem: String,
}

impl GridIdentity {
    /// The distinct groups of the attributes, without leading slash: `atlas/prod`.
    pub fn vos(&self) -> Vec<String> {
        let mut vos: Vec<String> = Vec::new();
        for vo in self.fqans.iter().map(|fqan| group_of(fqan)) {
            if !vo.is_empty() && !vos.contains(&vo) {
                vos.push(vo);
            }
        }
        vos
    }

    /// The distinct roles of the attributes, without `NULL`.
    pub fn roles(&self) -> Vec<String> {
        let mut roles: Vec<String> = Vec::new();
        let named =
            self.fqans.iter().flat_map(|fqan| fqan.split('/')).filter_map(|part| part.strip_prefix("Role="));
        for role in named.filter(|role| *role != "NULL") {
            if !roles.iter().any(|known| known == role) {
                roles.push(role.to_owned());
            }
        }
        roles
    }

    /// The id of this user's delegated credential, the one that FTS gives it.
    pub fn delegation_id(&self) -> String {
        let parts: Vec<&str> =
            std::iter::once(self.subject.as_str()).chain(self.fqans.iter().map(String::as_str)).collect();
        delegation_id(&parts)
    }
}

/// The first digits of the SHA-1 of the concatenated parts. An id, not a secret: callers must be its owner.
pub(crate) fn delegation_id(parts: &[&str]) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    for part in parts {
        context.update(part.as_bytes());
    }
    let mut id = hex::encode(context.finish().as_ref());
    id.truncate(DELEGATION_ID_DIGITS);
    id
}

/// `/atlas/prod/Role=production` is of the group `atlas/prod`.
fn group_of(fqan: &str) -> String {
    let groups = fqan
        .split('/')
        .skip(1)
        .take_while(|part| !part.starts_with("Role=") && !part.starts_with("Capability="));
    groups.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice(fqans: &[&str]) -> GridIdentity {
        GridIdentity {
            subject: "/DC=org/DC=example/OU=Users/CN=alice".into(),
            issuer: "/DC=org/DC=example/CN=CA".into(),
            proxies: 1,
            limited: false,
            fqans: fqans.iter().map(|&fqan| fqan.to_owned()).collect(),
            fqan_problem: None,
            not_after: Timestamp(0),
            rsa_bits: None,
            chain_pem: String::new(),
        }
    }

    #[test]
    fn groups_and_roles_come_from_attributes_in_order() {
        let user = alice(&[
            "/atlas/prod/Role=production/Capability=NULL",
            "/atlas/Role=NULL/Capability=NULL",
            "/atlas/prod/Role=NULL/Capability=NULL",
        ]);
        assert_eq!(user.vos(), ["atlas/prod", "atlas"]);
        assert_eq!(user.roles(), ["production"]);
        assert!(alice(&[]).vos().is_empty());
    }

    /// Digests from `printf TEXT | sha1sum`.
    #[test]
    fn delegation_ids_are_those_of_fts() {
        assert_eq!(alice(&[]).delegation_id(), "8facbc69f57a9d60");
        assert_eq!(alice(&["/testvo/Role=NULL/Capability=NULL"]).delegation_id(), "51bb2990ead29ce3");
    }
}
