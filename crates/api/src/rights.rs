//! The table of rights: for each change that a route makes, by what the right to it is bound.
//!
//! The table of routes says who may open a route at all ([`Access`]); the rows here say to whom its object
//! has to belong. A route whose change depends on what the request names has several rows, and a request
//! needs each row that it touches: suspending a subscription is one change, its priority another.
//! Administrators may do everything; for managers one of a row's bounds has to be theirs.
//!
//! The service judges by these rows, `longhaul whoami` and the administrator's guide are made from them.

use crate::routes::{self, Access, Method, Route};

/// By what a right is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// By nothing: whoever may open the route may do it to anything.
    Anything,
    /// The data is of the caller's community.
    Data,
    /// It is charged to the caller's community.
    Charge,
    /// The site, or the site of the storage, is one of the caller's.
    Site,
    /// It is the caller's own: their session, the jobs of their community, the work of an agent.
    Own,
}

impl Bound {
    /// The bound as tables of the documentation name it.
    pub const fn words(self) -> &'static str {
        match self {
            Bound::Anything => "anything",
            Bound::Data => "data of the own community",
            Bound::Charge => "what is charged to the own community",
            Bound::Site => "the own sites and their storages",
            Bound::Own => "what is the caller's own",
        }
    }

    /// Whether a manager of a community has the right by it.
    pub const fn by_community(self) -> bool {
        matches!(self, Bound::Data | Bound::Charge)
    }
}

/// A row: one change of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// Operation id of the route.
    pub operation: &'static str,
    /// The change in words that go on after "may".
    pub change: &'static str,
    /// One of them is enough.
    pub bounds: &'static [Bound],
}

impl Right {
    /// Whether managers may have it.
    pub fn is_for_managers(&self) -> bool {
        self.bounds.iter().any(|bound| matches!(bound, Bound::Data | Bound::Charge | Bound::Site))
    }
}

/// The rows of a route.
pub fn of_route(route: &Route) -> impl Iterator<Item = &'static Right> {
    let operation = route.operation;
    ALL.iter().filter(move |right| right.operation == operation)
}

/// The changes that managers may make, in words and each once: of sites, or of a community.
pub fn managed(by_community: bool) -> Vec<&'static str> {
    let mut words: Vec<&'static str> = Vec::new();
    for right in ALL {
        let is_theirs = |bound: &Bound| match by_community {
            true => bound.by_community(),
            false => *bound == Bound::Site,
        };
        if right.bounds.iter().any(is_theirs) && !words.contains(&right.change) {
            words.push(right.change);
        }
    }
    words
}

/// Whether a route changes something.
pub fn changes(route: &Route) -> bool {
    route.method != Method::Get
}

/// The table as Markdown: the rows that managers may have, then what is left to others.
pub fn markdown() -> String {
    let mut table = String::from("| route | may | managers: bound by |\n| --- | --- | --- |\n");
    for right in ALL.iter().filter(|right| right.is_for_managers()) {
        let bounds: Vec<&str> = right.bounds.iter().map(|bound| bound.words()).collect();
        table.push_str(&format!("| `{}` | {} | {} |\n", right.operation, right.change, bounds.join(", or ")));
    }
    for route in routes::ALL.iter().filter(|route| changes(route) && route.access == Access::Admin) {
        let words: Vec<&str> = of_route(route).map(|right| right.change).collect();
        table.push_str(&format!("| `{}` | {} | administrators only |\n", route.operation, words.join(", ")));
    }
    table
}

macro_rules! rights {
    ($($name:ident = $operation:literal [$($bound:ident),+] $change:literal;)*) => {
        $(
            #[doc = concat!("`", $operation, "`: ", $change, ".")]
            pub const $name: Right =
                Right { operation: $operation, change: $change, bounds: &[$(Bound::$bound),+] };
        )*

        /// The table.
        pub const ALL: &[Right] = &[$($name),*];
    };
}

rights! {
    DATASET_CREATE = "dataset_create" [Data] "register datasets and files";
    DATASET_ADD_FILES = "dataset_add_files" [Data] "register datasets and files";
    // Whoever says so decides what copies and deletions find there.
    REPLICA_REGISTER = "dataset_add_files" [Site] "register that storages have files of the own community";
    DATASET_SCAN = "dataset_scan" [Data] "register datasets and files";
    STORAGE_SCAN = "dataset_scan" [Site] "scan storages for files of the own community";
    DATASET_CLOSE = "dataset_close" [Data] "close datasets";
    DATASET_DELETE = "dataset_delete" [Data] "remove datasets";
    DELETION_CREATE = "deletion_create" [Data, Site] "delete replicas";
    DELETION_FORCE = "deletion_create" [Data] "delete last replicas";
    VERIFICATION_CREATE = "verification_create" [Site] "verify replicas";
    TASK_CANCEL = "task_cancel" [Data, Site] "cancel scans, verifications and deletions";
    SUBSCRIPTION_CREATE = "subscription_create" [Data, Site] "subscribe data";
    SUBSCRIPTION_CHARGE = "subscription_create" [Charge] "charge subscriptions to the community";
    SUBSCRIPTION_STATE = "subscription_change" [Charge, Site] "suspend, resume and cancel subscriptions";
    SUBSCRIPTION_TERMS = "subscription_change" [Charge] "change priorities and terms of subscriptions";
    TRANSFER_RETRY = "transfer_retry" [Anything] "retry transfers";
    JOB_SUBMIT = "job_submit" [Own] "submit copy jobs";
    JOB_CANCEL = "job_cancel" [Own] "cancel copy jobs";
    JOB_CHANGE = "job_change" [Own] "change copy jobs";
    SITE_ADD = "site_add" [Anything] "add sites";
    SITE_CHANGE = "site_change" [Site] "pause, drain and open sites and set their limits";
    SITE_JOIN_TOKEN = "site_join_token" [Site] "make join tokens";
    SITE_COMMISSION = "site_commission" [Site] "record commissioning tests";
    SITE_REMOVE = "site_remove" [Anything] "remove sites";
    AGENT_REFUSE = "agent_refuse" [Anything] "refuse agents";
    AGENT_REMOVE = "agent_remove" [Anything] "remove agents";
    STORAGE_CHANGE = "storage_change" [Site] "change storages";
    STORAGE_REMOVE = "storage_remove" [Anything] "remove storages";
    // A site that could take any name would take those of others.
    STORAGE_ALLOW = "storage_allow" [Anything] "allow storage names to sites";
    STORAGE_DISALLOW = "storage_disallow" [Anything] "take allowed storage names back";
    SHARE_SET = "share_set" [Charge] "set the shares of activities";
    COMMUNITY_SHARE_SET = "share_set" [Anything] "set the shares of communities";
    MOVER_SET = "mover_set" [Anything] "allow sites to stream for communities";
    LINK_SET = "link_set" [Anything] "replace the allowed links";
    LINK_CHANGE = "link_change" [Anything] "allow and commission links";
    LIMIT_SET = "limit_set" [Site] "set limits of storages and links";
    COMMUNITY_LIMIT_SET = "limit_set" [Anything] "set limits of communities";
    CIRCUIT_REQUEST = "circuit_request" [Anything] "request circuits";
    CIRCUIT_RELEASE = "circuit_release" [Anything] "release circuits";
    MEASUREMENT_SEND = "measurement_send" [Anything] "send measurements";
    MEASUREMENT_PUT = "measurement_put" [Anything] "send measurements";
    HOST_SET = "host_set" [Anything] "map hosts to sites";
    HOST_REMOVE = "host_remove" [Anything] "remove mappings of hosts";
    NETWORK_IMPORT = "network_import" [Anything] "import network knowledge";
    TOKEN_CREATE = "token_create" [Anything] "create tokens";
    TOKEN_REVOKE = "token_revoke" [Anything] "revoke tokens";
    ACCOUNT_ADD = "account_add" [Anything] "add accounts";
    ACCOUNT_CHANGE = "account_change" [Anything] "change accounts";
    ACCOUNT_REMOVE = "account_remove" [Anything] "remove accounts";
    SESSION_LOGIN = "session_login" [Own] "log in";
    SESSION_LOGOUT = "session_logout" [Own] "log out";
    LOGIN_TOKEN_CREATE = "login_token_create" [Own] "make one-time login tokens";
    AGENT_JOIN = "agent_join" [Own] "join a site";
    AGENT_REPORT = "agent_report" [Own] "report outcomes";
    AGENT_WORK = "agent_work" [Own] "fetch work";
    AGENT_RENEW = "agent_renew" [Own] "renew the certificate";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changing_route_has_a_row_and_every_row_a_route() {
        for route in routes::ALL {
            let rows = of_route(route).count();
            assert_eq!(rows > 0, changes(route), "{}: {rows} rows", route.operation);
        }
        for right in ALL {
            assert!(routes::by_operation(right.operation).is_some(), "{}", right.operation);
        }
    }

    #[test]
    fn what_opens_a_route_fits_its_rows() {
        for route in routes::ALL.iter().filter(|route| changes(route)) {
            let name = route.operation;
            let for_managers = of_route(route).any(Right::is_for_managers);
            assert_eq!(for_managers, route.access == Access::Manager, "{name}");
            match route.access {
                Access::Admin | Access::Observer => {
                    assert!(of_route(route).all(|right| right.bounds == [Bound::Anything]), "{name}");
                }
                Access::Manager => {
                    assert!(of_route(route).all(|right| !right.bounds.contains(&Bound::Own)), "{name}");
                }
                _ => assert!(of_route(route).all(|right| right.bounds == [Bound::Own]), "{name}"),
            }
        }
    }

    #[test]
    fn the_administrators_guide_has_the_table() {
        let guide = include_str!("../../../docs/howto/administrator.md");
        assert!(guide.contains(&markdown()), "docs/howto/administrator.md needs this table:\n{}", markdown());
    }

    /// Words say what may be done, never more than one row gives.
    #[test]
    fn words_are_those_of_the_own_rows() {
        let (sites, community) = (managed(false), managed(true));
        assert!(sites.contains(&"delete replicas") && community.contains(&"delete replicas"));
        assert!(community.contains(&"close datasets") && !sites.contains(&"close datasets"));
        assert!(sites.contains(&"make join tokens") && !community.contains(&"make join tokens"));
        assert!(!sites.contains(&"delete last replicas"), "a community's last copy is not a site's");
        for admins in ["add sites", "set the shares of communities", "create tokens"] {
            assert!(!sites.contains(&admins) && !community.contains(&admins), "{admins}");
        }
    }
}
