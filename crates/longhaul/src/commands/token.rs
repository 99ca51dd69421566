//! `longhaul token`.

use clap::{Args, Subcommand, ValueEnum};
use longhaul_api::native::{Page, TokenCreate, TokenCreated, TokenView};
use longhaul_api::routes;
use longhaul_model::{CommunityName, SiteName};

use super::Context;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left};
use crate::terminal::Style;

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create an API token and print it; it is shown only this once
    Create(CreateArgs),
    /// List API tokens (secrets are never shown)
    List,
    /// Revoke the API token with this name
    Revoke {
        /// Name of the token
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name of the token, for listing and revoking it
    name: String,
    /// Role of the token
    #[arg(long, value_enum, default_value = "viewer")]
    role: Role,
    /// Days until it expires [default: never]
    #[arg(long)]
    days: Option<u64>,
    /// Restrict it to this scope: jobs, data, sites, steering, network, access; append :read for read-only.
    /// May be repeated [default: everything its role allows]
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Restrict it to the jobs of this community; for a manager: the community that it manages
    #[arg(long)]
    community: Option<CommunityName>,
    /// Site that a manager manages; may be repeated
    #[arg(long = "site", value_name = "SITE")]
    sites: Vec<SiteName>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Sends measurements, nothing else (for measurement hosts)
    Observer,
    /// Sees everything, changes nothing
    Viewer,
    /// Sees everything, changes what belongs to its sites and community
    Manager,
    /// Sees and changes everything
    Admin,
}

pub async fn run(context: &Context, remote: &Remote, command: TokenCommand) -> Result<Exit, Failure> {
    match command {
        TokenCommand::Create(args) => {
            let role = match args.role {
                Role::Observer => "observer",
                Role::Viewer => "viewer",
                Role::Manager => "manager",
                Role::Admin => "admin",
            };
            let seconds = args.days.map(|days| days.saturating_mul(86_400));
            let request = TokenCreate {
                name: args.name,
                role: role.to_owned(),
                seconds,
                scopes: args.scopes,
                community: args.community,
                sites: args.sites,
            };
            let created: TokenCreated = remote.post(&routes::TOKEN_CREATE, &[], &request).await?;
            let human = |created: &TokenCreated, _: Style, _: Option<usize>| format!("{}\n", created.token);
            context.output.view(&created, human, |created| {
                let mut table = Table::new([left("token"), left("expires")]);
                table.row([
                    Cell::text(&created.token),
                    Cell::maybe(created.expires, |at| Cell::text(at.to_string())),
                ]);
                table
            })?;
        }
        TokenCommand::List => {
            let items: Vec<TokenView> = remote.list_all(&routes::TOKEN_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
        }
        TokenCommand::Revoke { name } => {
            remote.delete(&routes::TOKEN_REVOKE, &[&name]).await?;
            context.output.print_message(&format!("{} is revoked", longhaul_model::units::printable(&name)));
        }
    }
    Ok(Exit::Ok)
}

fn table(tokens: &[TokenView]) -> Table {
    let now = clock::now();
    let heads = ["name", "role", "for", "created", "expires"].map(left);
    let mut table = Table::new(heads);
    for token in tokens {
        let scopes = (!token.scopes.is_empty()).then(|| token.scopes.join(" "));
        let community = token.community.as_ref().map(|name| format!("community {name}"));
        let sites = token.sites.iter().map(|name| format!("site {name}"));
        let confined: Vec<String> = scopes.into_iter().chain(sites).chain(community).collect();
        table.row([
            Cell::text(&token.name),
            Cell::text(&token.role),
            Cell::maybe((!confined.is_empty()).then(|| confined.join(", ")), Cell::text),
            Cell::time(token.created, now),
            Cell::maybe(token.expires, |at| Cell::time(at, now)),
        ]);
    }
    table
}
