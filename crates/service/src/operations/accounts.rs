//! Local accounts: who has one, made and changed by administrators. Logging in with one is `logins`'.

use longhaul_api::Problem;
use longhaul_api::accounts::{AccountAdd, AccountChange, AccountView};
use longhaul_api::formats::ACCOUNT_NAME_SYNTAX;
use longhaul_api::native::Page;
use longhaul_catalog::{AccountPatch, AccountRow, NewAccount};
use longhaul_identity::{Caller, charge};
use longhaul_model::{CommunityName, Fault, FaultCode, SiteName};
use longhaul_security::{ManagerScope, Role, check_new_password, hash_password};

use super::access::manager_scope;
use super::{
    Operations, PageQuery, bad_request, not_found, page, problem, unprocessable, unprocessable_fault,
};

impl Operations {
    pub fn account_list(&self, query: &PageQuery) -> Result<Page<AccountView>, Problem> {
        let (after, limit): (Option<String>, usize) = (query.after()?, query.limit());
        let rows = self.shared.kernel.catalog.accounts(after.as_deref(), limit + 1).map_err(problem)?;
        page(rows, limit, |row| row.name.clone(), |row| Ok(view(row)))
    }

    pub fn account_add(&self, caller: &Caller, request: &AccountAdd) -> Result<AccountView, Problem> {
        caller.check_unconfined("account_add")?;
        let role = checked_role(&request.role)?;
        let charge = manager_scope(role, &request.sites, request.community.as_ref())?;
        self.check_sites(&charge)?;
        let account = NewAccount {
            name: checked_name(&request.name)?,
            role: role.word().to_owned(),
            community: request.community.clone(),
            sites: charge.sites_text(),
            password: self.hashed(&request.name, &request.password)?,
        };
        let changing = self.shared.identity.logins().lock_accounts();
        let row = self.shared.kernel.catalog.add_account(&account, &caller.principal.name, self.now());
        let row = row.map_err(problem)?;
        self.shared.identity.logins().set_has_accounts(true);
        self.shared.identity.owner_cache().invalidate();
        drop(changing);
        tracing::info!(account = row.name, role = row.role, by = %caller.principal.name, "account made");
        Ok(view(row))
    }

    /// Whatever changes: whoever is logged in with the account has to log in again, by what it is now.
    pub fn account_change(
        &self,
        caller: &Caller,
        name: &str,
        change: &AccountChange,
    ) -> Result<AccountView, Problem> {
        caller.check_unconfined("account_change")?;
        let password = change.password.as_ref().map(|password| self.hashed(name, password)).transpose()?;
        let community = change.community.as_deref().map(|text| match text {
            "" => Ok(None),
            text => text.parse::<CommunityName>().map(Some),
        });
        let mut patch = AccountPatch {
            password,
            role: change.role.as_deref().map(checked_role).transpose()?.map(|role| role.word().to_owned()),
            community: community.transpose().map_err(|error| bad_request(format!("community: {error}")))?,
            sites: None,
            disabled: change.disabled,
        };
        if patch.password.is_none()
            && patch.role.is_none()
            && patch.community.is_none()
            && change.sites.is_none()
            && patch.disabled.is_none()
        {
            return Err(unprocessable(
                "nothing is said that shall change: password, role, community, sites or disabled",
            ));
        }
        let changing = self.shared.identity.logins().lock_accounts();
        patch.sites = self.sites_after(name, &patch, change.sites.as_deref())?;
        let row = self.shared.kernel.catalog.change_account(name, &patch, &caller.principal.name, self.now());
        let row = row.map_err(problem)?;
        let sessions = self.shared.identity.end_sessions_of_account(name);
        self.shared.identity.owner_cache().invalidate();
        drop(changing);
        tracing::info!(account = row.name, sessions, by = %caller.principal.name, "account changed");
        Ok(view(row))
    }

    pub fn account_remove(&self, caller: &Caller, name: &str) -> Result<(), Problem> {
        let catalog = &self.shared.kernel.catalog;
        let changing = self.shared.identity.logins().lock_accounts();
        if !catalog.remove_account(name, &caller.principal.name, self.now()).map_err(problem)? {
            return Err(not_found("account", name, "longhaul account list"));
        }
        let sessions = self.shared.identity.end_sessions_of_account(name);
        self.shared.identity.owner_cache().invalidate();
        self.shared
            .identity
            .logins()
            .set_has_accounts(!catalog.accounts(None, 1).map_err(problem)?.is_empty());
        drop(changing);
        tracing::info!(account = name, sessions, by = %caller.principal.name, "account removed");
        Ok(())
    }

    /// Which sites stand with the account after a change, if that is another list than before. Whoever is a
    /// manager no more is one of no site.
    fn sites_after(
        &self,
        name: &str,
        patch: &AccountPatch,
        said: Option<&[SiteName]>,
    ) -> Result<Option<Option<String>>, Problem> {
        let row = self.shared.kernel.catalog.account(name).map_err(problem)?;
        let row = row.ok_or_else(|| not_found("account", name, "longhaul account list"))?;
        let role: Role = patch.role.as_ref().unwrap_or(&row.role).parse()?;
        let community = patch.community.as_ref().unwrap_or(&row.community).as_ref();
        let charge = match said {
            Some(sites) => manager_scope(role, sites, community)?,
            None if role == Role::Manager => {
                let kept = charge(role, row.sites.as_deref(), community);
                kept.map_err(unprocessable_fault)?
            }
            None => ManagerScope::default(),
        };
        self.check_sites(&charge)?;
        let sites = charge.sites_text();
        Ok((sites != row.sites).then_some(sites))
    }

    fn hashed(&self, name: &str, password: &str) -> Result<String, Problem> {
        check_new_password(name, password).map_err(unprocessable_fault)?;
        Ok(hash_password(password)?)
    }
}

fn view(row: AccountRow) -> AccountView {
    // Words that are no names, as of a later release, cannot be shown; who logs in with them is refused.
    let sites = ManagerScope::parse_sites(&row.sites.unwrap_or_default()).unwrap_or_default();
    AccountView {
        name: row.name,
        role: row.role,
        community: row.community,
        sites: sites.into_iter().collect(),
        disabled: row.disabled,
        created: row.created,
        password_since: row.password_since,
        last_login: row.last_login,
    }
}

/// In small letters only, so that no two are taken for one.
fn checked_name(name: &str) -> Result<String, Problem> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.@+".contains(c);
    let chars_max = ACCOUNT_NAME_SYNTAX.chars_max;
    if name.is_empty() || name.len() > chars_max || !name.chars().all(fits) {
        let detail = format!(
            "an account's name has 1 to {chars_max} letters (small ones, a to z), digits or \
                -_.@+"
        );
        return Err(Fault::new(FaultCode::BadName, detail).into());
    }
    Ok(name.to_owned())
}

fn checked_role(role: &str) -> Result<Role, Problem> {
    match role.parse()? {
        // It sends measurements, which nobody does on a page.
        Role::Observer => Err(bad_request("the role of an account is viewer, manager or admin")),
        role => Ok(role),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_roles_are_those_of_people() {
        for good in ["anna", "anna.b-c_d+e@lab.example", "7"] {
            assert_eq!(checked_name(good).unwrap(), good);
        }
        for bad in ["", "Anna", "anna b", "änna", "a/b", "anna (lab)", "a\n", &"x".repeat(65)] {
            assert_eq!(checked_name(bad).unwrap_err().code, FaultCode::BadName, "{bad:?}");
        }
        assert_eq!(checked_role("admin").unwrap(), Role::Admin);
        assert!(checked_role("observer").is_err() && checked_role("root").is_err());
    }
}
