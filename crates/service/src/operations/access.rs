//! API tokens as administrators make, list and revoke them.

use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::formats::{TOKEN_NAME_SYNTAX, TokenSeconds};
use longhaul_api::native::{Page, TokenCreate, TokenCreated, TokenView, WhoAmI};
use longhaul_catalog::NewApiToken;
use longhaul_identity::Caller;
use longhaul_model::{CommunityName, Fault, FaultCode, SiteName, Timestamp};
use longhaul_security::{ManagerScope, Role, Scopes, hash_secret, new_secret};

use super::{
    Operations, PageQuery, bad_request, not_found, page, problem, unprocessable, unprocessable_fault,
};

impl Operations {
    pub fn whoami(&self, caller: &Caller) -> WhoAmI {
        WhoAmI {
            name: caller.principal.name.clone(),
            role: caller.principal.role.to_string(),
            expires: caller.expires,
            scopes: caller.confinement().scopes.as_ref().map(words).unwrap_or_default(),
            community: caller.works_only_for().cloned(),
            sites: caller.principal.manages.sites.iter().cloned().collect(),
        }
    }

    pub fn token_list(&self, query: &PageQuery) -> Result<Page<TokenView>, Problem> {
        let after: Option<String> = query.after()?;
        let limit = query.limit();
        let mut rows = self.shared.kernel.catalog.api_tokens().map_err(problem)?;
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows.retain(|row| after.as_ref().is_none_or(|after| row.name > *after));
        rows.truncate(limit + 1);
        page(
            rows,
            limit,
            |row| row.name.clone(),
            |row| {
                let scopes = row.scopes.unwrap_or_default();
                let sites = ManagerScope::parse_sites(&row.sites.unwrap_or_default())?;
                Ok(TokenView {
                    name: row.name,
                    role: row.role,
                    created: row.created,
                    expires: row.expires,
                    scopes: scopes.split_ascii_whitespace().map(str::to_owned).collect(),
                    community: row.community,
                    sites: sites.into_iter().collect(),
                })
            },
        )
    }

    pub fn token_create(&self, caller: &Caller, request: &TokenCreate) -> Result<TokenCreated, Problem> {
        let name = &request.name;
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@+ ".contains(c));
        let chars_max = TOKEN_NAME_SYNTAX.chars_max;
        if name.is_empty() || name.len() > chars_max || !plain {
            let detail =
                format!("a token's name has 1 to {chars_max} letters (a to z), digits, spaces or -_.@+");
            return Err(Fault::new(FaultCode::BadName, detail).into());
        }
        let role: Role = request.role.parse()?;
        if let Some(seconds) = request.seconds.filter(|seconds| !TokenSeconds::RANGE.contains(seconds)) {
            let (least, most) = TokenSeconds::RANGE.into_inner();
            return Err(bad_request(format!("a token lives for {least} to {most} s, not for {seconds} s")));
        }
        if role == Role::Observer && request.community.is_some() {
            return Err(unprocessable(
                "the role observer has no jobs: it cannot be for those of a community",
            ));
        }
        let scopes: Option<Scopes> = match request.scopes.as_slice() {
            [] => None,
            words => Some(words.join(" ").parse()?),
        };
        if let Some(own) = &caller.confinement().scopes
            && !scopes.as_ref().is_some_and(|wanted| wanted.is_subset_of(own))
        {
            caller.check_unconfined("token_create")?;
        }
        let charge = manager_scope(role, &request.sites, request.community.as_ref())?;
        self.check_sites(&charge)?;
        let now = self.now();
        let wanted = request.seconds.map(|seconds| now + Duration::from_secs(seconds));
        let expires = within_parent(wanted, caller.parent_expires())?;
        let token = new_secret("lht_");
        let new = NewApiToken {
            hash: hash_secret(&token),
            name: name.clone(),
            role: role.word().to_owned(),
            expires,
            scopes: scopes.map(|scopes| scopes.to_string()),
            community: request.community.clone(),
            sites: charge.sites_text(),
        };
        self.shared.kernel.catalog.add_api_token(&new, now).map_err(problem)?;
        self.shared.identity.owner_cache().invalidate();
        tracing::info!(token = %name, %role, "token made");
        Ok(TokenCreated { token, expires })
    }

    /// A site that nobody has added would be managed by whoever adds one of that name, or be a slip of the
    /// pen.
    pub(super) fn check_sites(&self, charge: &ManagerScope) -> Result<(), Problem> {
        charge.sites.iter().try_for_each(|site| self.site_row(site).map(drop))
    }

    pub fn token_revoke(&self, name: &str) -> Result<(), Problem> {
        if !self.shared.kernel.catalog.remove_api_token(name).map_err(problem)? {
            return Err(not_found("token", name, "longhaul token list"));
        }
        self.shared.identity.owner_cache().invalidate();
        let sessions = self.shared.identity.end_sessions_of_token(name);
        tracing::info!(token = %longhaul_model::units::printable(name), sessions, "token revoked");
        Ok(())
    }
}

/// Which sites and community a role manages, if they go with it.
pub(super) fn manager_scope(
    role: Role,
    sites: &[SiteName],
    community: Option<&CommunityName>,
) -> Result<ManagerScope, Problem> {
    let scope = ManagerScope::new(role, sites.iter().cloned(), community);
    scope.map_err(unprocessable_fault)
}

/// A token that nobody gave an end gets that of the credential it is made with; one that should live longer
/// is refused.
fn within_parent(wanted: Option<Timestamp>, parent: Option<Timestamp>) -> Result<Option<Timestamp>, Problem> {
    match (wanted, parent) {
        (Some(wanted), Some(parent)) if wanted > parent => {
            let detail = format!(
                "the token would live until {wanted}, longer than the credential that makes it ({parent})"
            );
            let problem = Problem::from(Fault::new(FaultCode::NotAllowed, detail));
            Err(problem.with_remedy("ask for a shorter life, or make it with a credential that lasts longer"))
        }
        (None, parent) => Ok(parent),
        (wanted, _) => Ok(wanted),
    }
}

fn words(scopes: &Scopes) -> Vec<String> {
    scopes.to_string().split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_does_not_outlive_the_credential_that_makes_it() {
        let (early, late) = (Timestamp::from_seconds(10), Timestamp::from_seconds(20));
        assert_eq!(within_parent(None, Some(early)).unwrap(), Some(early), "not for ever");
        assert_eq!(within_parent(Some(early), Some(late)).unwrap(), Some(early));
        assert_eq!(within_parent(Some(early), None).unwrap(), Some(early));
        assert_eq!(within_parent(None, None).unwrap(), None);
        assert_eq!(within_parent(Some(late), Some(early)).unwrap_err().status, 403);
    }
}
