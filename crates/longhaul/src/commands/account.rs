//! `longhaul account`.

use clap::{Args, Subcommand, ValueEnum};
use longhaul_api::accounts::{AccountAdd, AccountChange, AccountView};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_model::units::printable;
use longhaul_model::{CommunityName, SiteName};

use super::Context;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::password_input;
use crate::remote::Remote;
use crate::table::{Cell, Table, left};

#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Create an account for password login to the web pages
    Add(AddArgs),
    /// List accounts (passwords are never shown)
    List,
    /// Set a new password and end the account's sessions
    Password {
        /// Name of the account
        name: String,
        #[command(flatten)]
        source: PasswordSource,
    },
    /// Change an account's role, sites or community and end its sessions
    Set(SetArgs),
    /// Disable an account and end its sessions
    Disable {
        /// Name of the account
        name: String,
    },
    /// Enable a disabled account
    Enable {
        /// Name of the account
        name: String,
    },
    /// Remove an account and end its sessions
    Remove {
        /// Name of the account
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Name of the account: lower-case letters, digits and -_.@+
    name: String,
    /// Role of the account
    #[arg(long, value_enum, default_value = "viewer")]
    role: Role,
    /// Community whose jobs the user submits, sees and cancels; for a manager also its shares and
    /// subscriptions [default: none]
    #[arg(long)]
    community: Option<CommunityName>,
    /// Site that a manager manages; may be repeated
    #[arg(long = "site", value_name = "SITE")]
    sites: Vec<SiteName>,
    #[command(flatten)]
    source: PasswordSource,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the account
    name: String,
    /// New role
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Community whose jobs the user submits, sees and cancels
    #[arg(long, conflicts_with = "no_community")]
    community: Option<CommunityName>,
    /// Site that a manager manages, replacing the present ones; may be repeated
    #[arg(long = "site", value_name = "SITE", conflicts_with = "no_site")]
    sites: Vec<SiteName>,
    /// Remove all sites
    #[arg(long)]
    no_site: bool,
    /// Remove the community
    #[arg(long)]
    no_community: bool,
}

#[derive(Debug, Args)]
pub struct PasswordSource {
    /// Read the password from the first line of standard input instead of the terminal
    #[arg(long)]
    password_stdin: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Sees everything, changes nothing
    Viewer,
    /// Sees everything, changes what belongs to its sites and community
    Manager,
    /// Sees and changes everything
    Admin,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Manager => "manager",
            Role::Admin => "admin",
        }
    }
}

pub async fn run(context: &Context, remote: &Remote, command: AccountCommand) -> Result<Exit, Failure> {
    match command {
        AccountCommand::Add(args) => {
            let request = AccountAdd {
                password: password(&args.name, &args.source)?,
                name: args.name,
                role: args.role.word().to_owned(),
                community: args.community,
                sites: args.sites,
            };
            let made: AccountView = remote.post(&routes::ACCOUNT_ADD, &[], &request).await?;
            print_account(context, &made)
        }
        AccountCommand::List => {
            let items: Vec<AccountView> = remote.list_all(&routes::ACCOUNT_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
            Ok(Exit::Ok)
        }
        AccountCommand::Password { name, source } => {
            let password = Some(password(&name, &source)?);
            change(context, remote, &name, AccountChange { password, ..AccountChange::default() }).await
        }
        AccountCommand::Set(args) => {
            let none = args.no_community.then(String::new);
            let community = args.community.map(|name| name.as_str().to_owned()).or(none);
            let role = args.role.map(|role| role.word().to_owned());
            let sites = (args.no_site || !args.sites.is_empty()).then_some(args.sites);
            let wish = AccountChange { role, community, sites, ..AccountChange::default() };
            change(context, remote, &args.name, wish).await
        }
        AccountCommand::Disable { name } => {
            let wish = AccountChange { disabled: Some(true), ..AccountChange::default() };
            change(context, remote, &name, wish).await
        }
        AccountCommand::Enable { name } => {
            let wish = AccountChange { disabled: Some(false), ..AccountChange::default() };
            change(context, remote, &name, wish).await
        }
        AccountCommand::Remove { name } => {
            remote.delete(&routes::ACCOUNT_REMOVE, &[&name]).await?;
            context
                .output
                .print_message(&format!("{} is removed and its sessions are ended", printable(&name)));
            Ok(Exit::Ok)
        }
    }
}

async fn change(
    context: &Context,
    remote: &Remote,
    name: &str,
    wish: AccountChange,
) -> Result<Exit, Failure> {
    let changed: AccountView = remote.patch(&routes::ACCOUNT_CHANGE, &[name], &wish).await?;
    print_account(context, &changed)
}

fn print_account(context: &Context, account: &AccountView) -> Result<Exit, Failure> {
    context.output.sentence(account, |account| {
        let community = account.community.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        let sites = match account.sites.as_slice() {
            [] => String::new(),
            sites => format!(" of {}", join_sites(sites)),
        };
        let state = if account.disabled { "is disabled" } else { "may log in" };
        format!("{} ({}{sites}{community}) {state}", printable(&account.name), printable(&account.role))
    })?;
    Ok(Exit::Ok)
}

fn password(name: &str, source: &PasswordSource) -> Result<String, Failure> {
    if source.password_stdin { password_input::from_stdin() } else { password_input::new_from_terminal(name) }
}

fn join_sites(sites: &[SiteName]) -> String {
    sites.iter().map(SiteName::to_string).collect::<Vec<_>>().join(", ")
}

fn table(accounts: &[AccountView]) -> Table {
    let now = clock::now();
    let columns = ["name", "role", "sites", "community", "state", "password since", "last login"];
    let mut table = Table::new(columns.map(left));
    for account in accounts {
        table.row([
            Cell::text(&account.name),
            Cell::text(&account.role),
            Cell::maybe((!account.sites.is_empty()).then(|| join_sites(&account.sites)), Cell::text),
            Cell::maybe(account.community.as_ref(), |name| Cell::text(name.to_string())),
            Cell::text(if account.disabled { "disabled" } else { "open" }),
            Cell::time(account.password_since, now),
            Cell::maybe(account.last_login, |at| Cell::time(at, now)),
        ]);
    }
    table
}
