//! Roles, and what each may do.

use longhaul_model::{Fault, FaultCode};

/// What a person or program may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends measurements, sees and changes nothing: for tokens that stand in the configuration of measurement hosts.
    Observer,
    /// Sees everything, changes nothing.
    Viewer,
    /// Everything.
    Admin,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Role::Observer => "observer",
            Role::Viewer => "viewer",
            Role::Admin => "admin",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.word())
    }
}

impl std::str::FromStr for Role {
    type Err = Fault;
    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "observer" => Ok(Role::Observer),
            "viewer" => Ok(Role::Viewer),
            "admin" => Ok(Role::Admin),
            _ => Err(Fault::new(FaultCode::BadRequest, "a role is one of: observer, viewer, admin")),
        }
    }
}

/// Somebody who has shown who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Of the token or session, for people and logs.
    pub name: String,
    pub role: Role,
}

/// What is about to be done, with the operation's name for the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read(&'static str),
    Change(&'static str),
    /// Tells what was measured.
    Observe(&'static str),
}

/// The one place that decides.
pub fn authorise(principal: &Principal, action: &Action) -> Result<(), Fault> {
    let (needed, operation) = match *action {
        Action::Read(operation) => (Role::Viewer, operation),
        Action::Change(operation) => (Role::Admin, operation),
        Action::Observe(operation) => (Role::Observer, operation),
    };
    if principal.role == needed || principal.role == Role::Admin {
        return Ok(());
    }
    let name = longhaul_model::units::printable(&principal.name);
    Err(Fault::new(
        FaultCode::NotAllowed,
        format!("{operation} needs the role {needed}; {name} has the role {}", principal.role),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_reads_and_an_admin_does_all() {
        let viewer = Principal { name: "shift\n".into(), role: Role::Viewer };
        let admin = Principal { name: "root".into(), role: Role::Admin };
        assert!(authorise(&viewer, &Action::Read("status")).is_ok());
        assert!(authorise(&admin, &Action::Read("status")).is_ok());
        assert!(authorise(&admin, &Action::Change("site-add")).is_ok());
        let refused = authorise(&viewer, &Action::Change("site-add")).unwrap_err();
        assert_eq!(refused.code, FaultCode::NotAllowed);
        assert!(refused.detail.contains("admin") && !refused.detail.contains('\n'));
    }

    #[test]
    fn an_observer_only_observes() {
        let of = |role| Principal { name: "mesh".into(), role };
        assert!(authorise(&of(Role::Observer), &Action::Observe("measurement_send")).is_ok());
        assert!(authorise(&of(Role::Admin), &Action::Observe("measurement_send")).is_ok());
        assert!(authorise(&of(Role::Viewer), &Action::Observe("measurement_send")).is_err());
        for action in [Action::Read("status"), Action::Change("site-add")] {
            assert!(authorise(&of(Role::Observer), &action).is_err());
        }
    }

    #[test]
    fn words_go_both_ways() {
        for role in [Role::Observer, Role::Viewer, Role::Admin] {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
        }
        assert!("Admin".parse::<Role>().is_err());
    }
}
