//! `longhaul share`.

use clap::{Args, Subcommand};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_api::steering::{ShareChange, ShareView};
use longhaul_model::{ActivityName, CommunityName};

use super::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, right};

#[derive(Debug, Subcommand)]
pub enum ShareCommand {
    /// List the fair shares of communities and activities
    List,
    /// Set a weight: 3 against 1 means three times the bandwidth when both have more work than fits; takes
    /// effect at once
    Set(SetArgs),
    /// Remove the weight of a community or activity: it gets that of all others of its kind
    Remove {
        /// Community or activity, as for set
        #[arg(value_name = "COMMUNITY[/ACTIVITY]")]
        whose: ShareSubject,
    },
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Community, such as atlas, or one of its activities, such as atlas/user-subscriptions; * for either
    /// name means all others
    #[arg(value_name = "COMMUNITY[/ACTIVITY]")]
    whose: ShareSubject,
    /// Weight from 0 to 1,000,000; 0 gets only what nobody else can use
    weight: f64,
}

/// Names as in the API.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareSubject {
    community: String,
    activity: Option<String>,
}

const WILDCARD: &str = "*";

impl std::str::FromStr for ShareSubject {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (community, activity) = match text.split_once('/') {
            Some((community, activity)) => (community, Some(activity)),
            None => (text, None),
        };
        if community == WILDCARD && activity.is_some() {
            return Err("an activity needs the name of its community".to_owned());
        }
        if community != WILDCARD {
            CommunityName::parse(community).map_err(|error| error.to_string())?;
        }
        if let Some(activity) = activity.filter(|activity| *activity != WILDCARD) {
            ActivityName::parse(activity).map_err(|error| error.to_string())?;
        }
        Ok(ShareSubject { community: community.to_owned(), activity: activity.map(str::to_owned) })
    }
}

pub async fn run(context: &Context, remote: &Remote, command: ShareCommand) -> Result<Exit, Failure> {
    let change = match command {
        ShareCommand::List => {
            let items: Vec<ShareView> = remote.list_all(&routes::SHARE_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
            return Ok(Exit::Ok);
        }
        ShareCommand::Set(args) => (args.whose, Some(args.weight)),
        ShareCommand::Remove { whose } => (whose, None),
    };
    let (ShareSubject { community, activity }, weight) = change;
    let change = ShareChange { community, activity, weight };
    let page: Page<ShareView> = remote.post(&routes::SHARE_SET, &[], &change).await?;
    context.output.table(&page, |page| table(&page.items))?;
    Ok(Exit::Ok)
}

fn table(shares: &[ShareView]) -> Table {
    let mut table = Table::new([
        left("community"),
        left("activity"),
        right("weight"),
        right("share under load").plain_title("part if all want"),
    ]);
    for share in shares {
        let others = |name: &str, all: &str| {
            if name == WILDCARD { Cell::both(all, WILDCARD) } else { Cell::text(name) }
        };
        table.row([
            others(&share.community, "all others"),
            match &share.activity {
                None => Cell::both("", ""),
                Some(activity) => others(activity, "all others and none"),
            },
            Cell::text(share.weight.to_string()),
            Cell::both(format!("{:.1} %", 100.0 * share.part), format!("{:.4}", share.part)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_first_slash() {
        let whose: ShareSubject = "atlas/user-subscriptions".parse().unwrap();
        assert_eq!(
            (whose.community.as_str(), whose.activity.as_deref()),
            ("atlas", Some("user-subscriptions"))
        );
        assert_eq!("*".parse::<ShareSubject>().unwrap().activity, None);
        assert_eq!("atlas/*".parse::<ShareSubject>().unwrap().activity.as_deref(), Some("*"));
        for wrong in ["", "*/production", "a\nb", "atlas/"] {
            assert!(wrong.parse::<ShareSubject>().is_err(), "{wrong:?}");
        }
    }
}
