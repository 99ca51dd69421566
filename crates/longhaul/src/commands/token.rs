//! `longhaul token`.

use clap::{Args, Subcommand, ValueEnum};
use longhaul_api::native::{Page, TokenCreate, TokenCreated, TokenView};
use longhaul_api::routes;

use super::Context;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left};
use crate::terminal::Style;

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make an API token and print it, this once
    Create(CreateArgs),
    /// List API tokens, never their secrets
    List,
    /// Revoke the API token of that name
    Revoke {
        /// Name of the token
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name of the token, to recognise and revoke it
    name: String,
    /// What it may do
    #[arg(long, value_enum, default_value = "viewer")]
    role: Role,
    /// Days until it expires [default: never]
    #[arg(long)]
    days: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Send measurements, and nothing else: for measurement hosts
    Observer,
    /// See everything, change nothing
    Viewer,
    /// Everything
    Admin,
}

pub async fn run(context: &Context, remote: &Remote, command: TokenCommand) -> Result<Exit, Failure> {
    match command {
        TokenCommand::Create(args) => {
            let role = match args.role {
                Role::Observer => "observer",
                Role::Viewer => "viewer",
                Role::Admin => "admin",
            };
            let seconds = args.days.map(|days| days.saturating_mul(86_400));
            let request = TokenCreate { name: args.name, role: role.to_owned(), seconds };
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
            let items: Vec<TokenView> = remote.all(&routes::TOKEN_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
        }
        TokenCommand::Revoke { name } => {
            remote.delete(&routes::TOKEN_REVOKE, &[&name]).await?;
            context.output.say(&format!("{} is revoked", longhaul_model::units::printable(&name)));
        }
    }
    Ok(Exit::Ok)
}

fn table(tokens: &[TokenView]) -> Table {
    let now = clock::now();
    let mut table = Table::new([left("name"), left("role"), left("created"), left("expires")]);
    for token in tokens {
        table.row([
            Cell::text(&token.name),
            Cell::text(&token.role),
            Cell::time(token.created, now),
            Cell::maybe(token.expires, |at| Cell::time(at, now)),
        ]);
    }
    table
}
