//! `/config`: read by those who may configure, changed with a record.

use std::collections::BTreeMap;

use http::StatusCode;
use longhaul_api::fts::{
    ActivityShares, GlobalSettings, Grant, LinkSettings, Moment, Refusal, ShareSetting, StorageSettings,
};
use longhaul_catalog::AuditKind;
use longhaul_control::steering::Whose;
use longhaul_identity::refusal;
use longhaul_jobs::config_store::Objects;
use longhaul_jobs::party_of;
use longhaul_model::CommunityName;
use longhaul_scheduler::Party;
use serde_json::{Map, Value, json};

use super::bans::change;
use super::clouds;
use super::request::{FtsRequest, Reply};
use super::routes;
use super::views::own_host;
use crate::operations::{Operations, problem, unprocessable_fault};

const AUDIT_ROWS: usize = 100;

pub fn answer(operations: &Operations, ask: &FtsRequest, words: &[&str]) -> Result<Reply, Refusal> {
    ask.person.needs_all("config")?;
    let kept = operations.shared.job_control.config_store.get()?;
    match (words, ask.method.as_str()) {
        ([], "GET") => overview(operations, &kept),
        (["audit"], "GET") => audit(operations),
        (["drain"], "POST") => drain(operations, ask),
        (["global"], "GET") => Reply::json(&globals(&kept)),
        (["global"], "POST") => set_global(operations, ask),
        (["global"], "DELETE") => remove_global(operations, ask),
        (["links"], "GET") => Reply::json(&kept.links.values().collect::<Vec<_>>()),
        (["links"], "POST") => set_link(operations, ask),
        (["links", name], "GET") => Reply::json(kept.links.get(*name).ok_or_else(|| no_link(name))?),
        (["links", name], "DELETE") => remove_link(operations, ask, name),
        (["shares"], "GET") => Reply::json(&kept.shares),
        (["shares"], "POST") => set_share(operations, ask),
        (["shares"], "DELETE") => remove_share(operations, ask),
        (["se"], "GET") => show_storages(&kept, ask.query.get("se")),
        (["se"], "POST") => set_storages(operations, ask),
        (["se"], "DELETE") => remove_storage(operations, ask),
        (["authorize"], "GET") => show_grants(&kept, ask),
        (["authorize"], "POST") => set_grant(operations, ask),
        (["authorize"], "DELETE") => remove_grant(operations, ask),
        (["activity_shares"], "GET") => {
            let all = kept.activities.iter().map(|(vo, shares)| (vo.clone(), activity_view(shares)));
            Reply::json(&all.collect::<Map<String, Value>>())
        }
        (["activity_shares"], "POST") => set_activities(operations, ask),
        (["activity_shares", vo], "GET") => {
            let shares =
                kept.activities.get(*vo).ok_or_else(|| Refusal::missing("No activity shares for that VO"))?;
            Reply::json(&activity_view(shares))
        }
        (["activity_shares", vo], "DELETE") => change(operations, ask, |objects| {
            objects.activities.remove(*vo);
            Ok((Reply::nothing(), format!("activity shares of {vo} removed")))
        }),
        (["cloud_storage", words @ ..], _) => clouds::answer(operations, ask, words, &kept),
        _ => Err(routes::refused(ask)),
    }
}

fn parameter<'a>(ask: &'a FtsRequest, name: &str) -> Result<&'a str, Refusal> {
    ask.query.get(name).ok_or_else(|| Refusal::bad(format!("Missing parameter: {name}")))
}

fn overview(operations: &Operations, kept: &Objects) -> Result<Reply, Refusal> {
    let host = own_host(operations);
    let services: Vec<Value> = ["fts_server", "fts_qosdaemon"]
        .iter()
        .map(|service| {
            let drain = kept.draining.contains(&host);
            json!({ "service": service, "beat": Moment(operations.now()), "drain": drain })
        })
        .collect();
    Reply::json(&json!({ host: services }))
}

fn audit(operations: &Operations) -> Result<Reply, Refusal> {
    let rows = operations
        .shared
        .kernel
        .catalog
        .audit(Some(AuditKind::Change), None, AUDIT_ROWS)
        .map_err(|error| refusal(problem(error)))?;
    let shown: Vec<Value> = rows
        .into_iter()
        .map(|row| {
            let (action, config) = row.what.split_once(": ").unwrap_or(("change", &row.what));
            json!({ "datetime": Moment(row.at), "dn": row.who, "action": action, "config": config })
        })
        .collect();
    Reply::json(&shown)
}

fn drain(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let body = ask.dictionary()?;
    let hostname =
        body.get("hostname").and_then(Value::as_str).filter(|name| !name.is_empty() && name.len() <= 255);
    let hostname = hostname.ok_or_else(|| Refusal::bad("Missing hostname"))?.to_owned();
    let on = matches!(body.get("drain"), None | Some(Value::Bool(true)));
    change(operations, ask, |objects| {
        if on {
            objects.draining.insert(hostname.clone())
        } else {
            objects.draining.remove(&hostname)
        };
        let what = if on { "drains" } else { "no longer drains" };
        Ok((Reply::json(&json!({}))?, format!("{hostname} {what}")))
    })
    .inspect(|_| operations.jobs().configured())
}

fn globals(kept: &Objects) -> Value {
    let all = kept.globals.iter().map(|(vo, settings)| (vo.clone(), Value::Object(settings.values.clone())));
    let mut all: Map<String, Value> = all.collect();
    all.entry("*").or_insert_with(|| json!({}));
    Value::Object(all)
}

fn set_global(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let (vo, values) = GlobalSettings::parse(&ask.dictionary()?)?;
    change(operations, ask, |objects| {
        let what = format!("global settings of {vo}: {}", Value::Object(values.clone()));
        let kept = objects.globals.entry(vo).or_default();
        kept.values.extend(values);
        Ok((Reply::json(&kept.values)?, what))
    })
}

fn remove_global(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let vo = parameter(ask, "vo_name")?;
    if vo == "*" {
        return Err(Refusal::bad("Can not delete the global configuration"));
    }
    change(operations, ask, |objects| {
        objects.globals.remove(vo);
        Ok((Reply::nothing(), format!("global settings of {vo} removed")))
    })
}

fn no_link(name: &str) -> Refusal {
    Refusal::missing(format!("Link {} does not exist", longhaul_model::units::printable(name)))
}

fn set_link(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let link = LinkSettings::parse(&ask.dictionary()?)?;
    let known = |kept: &LinkSettings| kept.source == link.source && kept.destination == link.destination;
    change(operations, ask, |objects| {
        if let Some(other) =
            objects.links.values().find(|kept| known(kept) && kept.symbolicname != link.symbolicname)
        {
            return Err(Refusal::bad(format!("The pair is configured as {} already", other.symbolicname)));
        }
        let what = format!(
            "link {}: {} to {}, {} to {} at a time",
            link.symbolicname, link.source, link.destination, link.min_active, link.max_active
        );
        objects.links.insert(link.symbolicname.clone(), link.clone());
        Ok((Reply::json(&link)?.with_status(StatusCode::CREATED), what))
    })
    .inspect(|_| operations.jobs().configured())
}

fn remove_link(operations: &Operations, ask: &FtsRequest, name: &str) -> Result<Reply, Refusal> {
    change(operations, ask, |objects| {
        let link = objects.links.remove(name).ok_or_else(|| no_link(name))?;
        objects.shares.retain(|share| share.source != link.source || share.destination != link.destination);
        Ok((Reply::nothing(), format!("link {name} removed, with its shares")))
    })
    .inspect(|_| operations.jobs().configured())
}

fn same_place(kept: &ShareSetting, share: &ShareSetting) -> bool {
    kept.source == share.source && kept.destination == share.destination && kept.vo == share.vo
}

fn set_share(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let share = ShareSetting::parse(&ask.dictionary()?)?;
    let weights = weights_everywhere(&share.source, &share.destination, &share.vo, Some(share.share))?;
    change_with_weights(operations, ask, &weights, |objects| {
        let known = objects
            .links
            .values()
            .any(|link| link.source == share.source && link.destination == share.destination);
        if !known {
            return Err(Refusal::bad(format!(
                "There is no link configuration for {} to {}: make one first",
                share.source, share.destination
            )));
        }
        objects.shares.retain(|kept| !same_place(kept, &share));
        let what =
            format!("share of {} from {} to {}: {}", share.vo, share.source, share.destination, share.share);
        let reply = Reply::json(&share)?;
        objects.shares.push(share);
        Ok((reply, what))
    })
}

/// What counts on all pairs is the community's share in the scheduler; that of one pair counts there in its
/// place.
fn weights_everywhere(
    source: &str,
    destination: &str,
    vo: &str,
    weight: Option<f64>,
) -> Result<Vec<(Whose, Option<f64>)>, Refusal> {
    if source != "*" || destination != "*" {
        return Ok(Vec::new());
    }
    let community = vo.parse::<CommunityName>();
    let no_vo = |_| Refusal::bad(format!("{} is no VO", longhaul_model::units::printable(vo)));
    Ok(vec![(Whose::Community(community.map_err(no_vo)?), weight)])
}

/// A change of the configuration together with the scheduler's weights that follow from it, recorded: where
/// either is refused, nothing is changed.
fn change_with_weights(
    operations: &Operations,
    ask: &FtsRequest,
    weights: &[(Whose, Option<f64>)],
    change_objects: impl FnOnce(&mut Objects) -> Result<(Reply, String), Refusal>,
) -> Result<Reply, Refusal> {
    if weights.is_empty() {
        return change(operations, ask, change_objects).inspect(|_| operations.jobs().configured());
    }
    let config_store = &operations.shared.job_control.config_store;
    let changed = config_store.change_with_shares(&ask.person.dn, operations.now(), |objects, shares| {
        let changed = change_objects(objects)?;
        shares.set_all(weights).map_err(|fault| refusal(unprocessable_fault(fault)))?;
        Ok(changed)
    });
    let (reply, shares) = changed?;
    operations.put_shares_in_force(&shares);
    Ok(reply)
}

fn remove_share(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let (source, destination, vo) =
        (parameter(ask, "source")?, parameter(ask, "destination")?, parameter(ask, "vo")?);
    let weights = weights_everywhere(source, destination, vo, None)?;
    change_with_weights(operations, ask, &weights, |objects| {
        objects
            .shares
            .retain(|kept| !(kept.source == source && kept.destination == destination && kept.vo == vo));
        Ok((Reply::nothing(), format!("share of {vo} from {source} to {destination} removed")))
    })
}

fn show_storages(kept: &Objects, only: Option<&str>) -> Result<Reply, Refusal> {
    let shown = kept.storages.iter().filter(|(name, _)| only.is_none_or(|only| only == name.as_str()));
    Reply::json(
        &shown.map(|(name, settings)| (name.clone(), settings.view())).collect::<Map<String, Value>>(),
    )
}

fn set_storages(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let changes = StorageSettings::parse(&ask.dictionary()?)?;
    change(operations, ask, |objects| {
        let mut last = StorageSettings::default();
        for (name, settings) in &changes {
            let kept = objects.storages.entry(name.clone()).or_default();
            kept.merge(settings);
            last = StorageSettings {
                se_info: settings.se_info.as_ref().and(kept.se_info.clone()),
                operations: settings.operations.as_ref().and(kept.operations.clone()),
            };
        }
        let names: Vec<&str> = changes.iter().map(|(name, _)| name.as_str()).collect();
        let what =
            format!("storages {}: {}", names.join(", "), json!(changes.last().map(|(_, settings)| settings)));
        Ok((Reply::json(&json!([last.se_info, last.operations]))?, what))
    })
    .inspect(|_| operations.jobs().configured())
}

fn remove_storage(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let name = parameter(ask, "se")?;
    change(operations, ask, |objects| {
        objects.storages.remove(name);
        Ok((Reply::nothing(), format!("storage {name} has no settings any more")))
    })
    .inspect(|_| operations.jobs().configured())
}

fn show_grants(kept: &Objects, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let fits = |name: &str, value: &str| ask.query.get(name).is_none_or(|wanted| wanted == value);
    let shown =
        kept.grants.iter().filter(|grant| fits("dn", &grant.dn) && fits("operation", &grant.operation));
    Reply::json(&shown.collect::<Vec<_>>())
}

fn set_grant(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let grant = Grant::parse(&ask.dictionary()?)?;
    change(operations, ask, |objects| {
        objects.grants.insert(grant.clone());
        Ok((Reply::json(&grant)?, format!("{} may {} for all", grant.dn, grant.operation)))
    })
}

fn remove_grant(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let dn = parameter(ask, "dn")?;
    let operation = ask.query.get("operation");
    change(operations, ask, |objects| {
        objects
            .grants
            .retain(|grant| !(grant.dn == dn && operation.is_none_or(|wanted| wanted == grant.operation)));
        Ok((Reply::nothing(), format!("{dn} may no longer {} for all", operation.unwrap_or("do anything"))))
    })
}

fn activity_view(shares: &ActivityShares) -> Value {
    json!({ "share": shares.share, "active": shares.active })
}

fn set_activities(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let shares = ActivityShares::parse(&ask.dictionary()?)?;
    let what = format!("activity shares of {}: {}", shares.vo, json!(shares.share));
    let weights = if shares.active { scheduler_weights(&shares)? } else { Vec::new() };
    change_with_weights(operations, ask, &weights, |objects| {
        objects.activities.insert(shares.vo.clone(), shares.clone());
        Ok((Reply::json(&shares)?, what))
    })
}

/// The same weights as the scheduler's shares, under the names that it gives to the activities of jobs.
fn scheduler_weights(shares: &ActivityShares) -> Result<Vec<(Whose, Option<f64>)>, Refusal> {
    let mut names = BTreeMap::new();
    let mut weights = Vec::with_capacity(shares.share.len());
    for (activity, weight) in &shares.share {
        let Party { community, activity: name } = party_of(&shares.vo, activity);
        if let Some(other) = names.insert(name.clone(), activity) {
            return Err(Refusal::bad(format!(
                "The activities {other:?} and {activity:?} are one to the scheduler, which reads blanks and \
                    signs as '-': give one of them a share"
            )));
        }
        let whose = match name {
            Some(name) => Whose::Activity(community, name),
            None => Whose::OtherActivities(community),
        };
        weights.push((whose, Some(*weight)));
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(share: Value) -> Result<Vec<(Whose, Option<f64>)>, Refusal> {
        let body = json!({ "vo": "atlas", "share": share });
        scheduler_weights(&ActivityShares::parse(body.as_object().unwrap())?)
    }

    #[test]
    fn activities_with_blanks_have_the_shares_of_their_jobs() {
        let weights = weights(json!({ "Data Challenge": 0.5, "T0 Export": 0.3, "default": 0.2 })).unwrap();
        for (activity, weight) in [("Data Challenge", 0.5), ("T0 Export", 0.3)] {
            let Party { community, activity: name } = party_of("atlas", activity);
            let whose = Whose::Activity(community, name.unwrap());
            assert!(weights.contains(&(whose, Some(weight))), "{activity} of {weights:?}");
        }
        assert!(weights.contains(&(Whose::OtherActivities("atlas".parse().unwrap()), Some(0.2))));
    }

    #[test]
    fn two_activities_of_one_name_are_refused() {
        assert!(weights(json!({ "data challenge": 1, "data-challenge": 2 })).is_err());
        assert!(weights(json!({ "": 1, "default": 2 })).is_err());
    }
}
