//! Which operation answers which route: one line each.

use longhaul_api::native::Page;
use longhaul_api::native::TransferQuery;
use longhaul_api::{Problem, openapi};

use super::answer::Answer;
use super::call::Call;
use super::cookie;
use crate::operations::{FileList, JobList, MoreWork, Operations, SubscriptionList, TaskList};

pub type Handler = fn(&Operations, &Call) -> Result<Answer, Problem>;

/// Operations that wait for something or stream; answered in `http`.
#[cfg(test)]
pub const STREAMED: &[&str] = &["agent_report", "agent_work", "events", "dataset_add_files"];

macro_rules! json {
    ($body:expr) => {
        Answer::json(&$body)
    };
}

/// None for operations that wait for something or stream, which `http` answers itself, and for what is in no
/// table.
pub fn handler(operation: &str) -> Option<Handler> {
    Some(match operation {
        "dataset_list" => |ops, call| json!(ops.dataset_list(&call.page()?)?),
        "dataset_create" => |ops, call| json!(ops.dataset_create(call.caller()?, call.json()?)?),
        "dataset_show" => |ops, call| json!(ops.dataset_show(&call.parameter("dataset")?)?),
        "dataset_close" => |ops, call| json!(ops.dataset_close(call.caller()?, &call.parameter("dataset")?)?),
        "dataset_delete" => |ops, call| {
            ops.dataset_delete(call.caller()?, &call.parameter("dataset")?)?;
            Ok(Answer::nothing())
        },
        "dataset_blocks" => {
            |ops, call| json!(ops.dataset_blocks(&call.parameter("dataset")?, &call.page()?)?)
        }
        "dataset_files" => |ops, call| {
            let list = FileList { block: call.query("block")?, page: call.page()? };
            json!(ops.dataset_files(&call.parameter("dataset")?, &list)?)
        },
        "dataset_replicas" => |ops, call| {
            let items = ops.dataset_replicas(&call.parameter("dataset")?)?;
            json!(Page { items, next: None })
        },
        "dataset_scan" => {
            |ops, call| json!(ops.dataset_scan(call.caller()?, &call.parameter("dataset")?, &call.json()?)?)
        }
        "replica_of_file" => |ops, call| json!(ops.replica_of_file(&call.lfn()?)?),
        "deletion_create" => |ops, call| json!(ops.deletion_create(call.caller()?, &call.json()?)?),
        "verification_create" => |ops, call| json!(ops.verification_create(call.caller()?, &call.json()?)?),
        "task_list" => |ops, call| {
            let list = TaskList {
                dataset: call.query("dataset")?,
                storage: call.query("storage")?,
                page: call.page()?,
            };
            json!(ops.task_list(&list)?)
        },
        "task_show" => |ops, call| json!(ops.task_show(call.parameter("task")?)?),
        "task_cancel" => |ops, call| json!(ops.task_cancel(call.caller()?, call.parameter("task")?)?),
        "subscription_list" => |ops, call| {
            let list = SubscriptionList {
                dataset: call.query("dataset")?,
                storage: call.query("storage")?,
                state: call.query("state")?,
                page: call.page()?,
            };
            json!(ops.subscription_list(&list)?)
        },
        "subscription_create" => |ops, call| json!(ops.subscription_create(call.caller()?, &call.json()?)?),
        "subscription_show" => |ops, call| json!(ops.subscription_show(call.parameter("subscription")?)?),
        "subscription_change" => |ops, call| {
            json!(ops.subscription_change(call.caller()?, call.parameter("subscription")?, &call.json()?)?)
        },
        "transfer_list" => |ops, call| {
            let list = TransferQuery {
                dataset: call.query("dataset")?,
                source: call.query("source")?,
                target: call.query("target")?,
                state: call.query("state")?,
                limit: call.query("limit")?,
                after: call.query("after")?,
            };
            json!(ops.transfer_list(&list)?)
        },
        "transfer_show" => |ops, call| json!(ops.transfer_show(call.parameter("transfer")?)?),
        "transfer_retry" => |ops, call| json!(ops.transfer_retry(call.parameter("transfer")?)?),
        "job_list" => |ops, call| {
            let list = JobList {
                state: call.query("state")?,
                community: call.query("community")?,
                source: call.query("source")?,
                target: call.query("target")?,
                since: call.query("since")?,
                page: call.page()?,
            };
            json!(ops.job_list(call.caller()?, &list)?)
        },
        "job_submit" => |ops, call| json!(ops.job_submit(call.caller()?, &call.json()?)?),
        "job_show" => {
            |ops, call| json!(ops.job_show(call.caller()?, call.parameter("job")?, call.query("files")?)?)
        }
        "job_cancel" => |ops, call| json!(ops.job_cancel(call.caller()?, call.parameter("job")?)?),
        "job_change" => {
            |ops, call| json!(ops.job_change(call.caller()?, call.parameter("job")?, &call.json()?)?)
        }
        "site_list" => |ops, call| json!(ops.site_list(&call.page()?)?),
        "site_add" => |ops, call| json!(ops.site_add(call.caller()?, &call.json()?)?),
        "site_show" => |ops, call| json!(ops.site_show(&call.parameter("site")?)?),
        "site_change" => {
            |ops, call| json!(ops.site_change(call.caller()?, &call.parameter("site")?, &call.json()?)?)
        }
        "site_join_token" => {
            |ops, call| json!(ops.site_join_token(call.caller()?, &call.parameter("site")?, &call.json()?)?)
        }
        "site_commission" => {
            |ops, call| json!(ops.site_commission(call.caller()?, &call.parameter("site")?, call.json()?)?)
        }
        "agent_refuse" => |ops, call| json!(ops.agent_refuse(call.parameter("agent")?, &call.json()?)?),
        "agent_remove" => {
            |ops, call| json!(ops.agent_remove(call.caller()?, call.parameter("agent")?, &call.json()?)?)
        }
        "storage_list" => |ops, call| json!(ops.storage_list(&call.page()?)?),
        "storage_show" => |ops, call| json!(ops.storage_show(&call.parameter("storage")?)?),
        "storage_change" => |ops, call| {
            json!(ops.storage_change(call.caller()?, &call.parameter("storage")?, &call.json()?)?)
        },
        "site_remove" => {
            |ops, call| json!(ops.site_remove(call.caller()?, &call.parameter("site")?, &call.json()?)?)
        }
        "storage_remove" => |ops, call| {
            json!(ops.storage_remove(call.caller()?, &call.parameter("storage")?, &call.json()?)?)
        },
        "storage_allow" => |ops, call| {
            json!(ops.storage_allow(call.caller()?, &call.parameter("storage")?, &call.json()?)?)
        },
        "storage_disallow" => |ops, call| {
            ops.storage_disallow(call.caller()?, &call.parameter("storage")?)?;
            Ok(Answer::nothing())
        },
        "share_list" => |ops, _| json!(ops.share_list()?),
        "share_set" => |ops, call| json!(ops.share_set(call.caller()?, &call.json()?)?),
        "mover_list" => |ops, _| json!(ops.mover_list()?),
        "mover_set" => |ops, call| json!(ops.mover_set(call.caller()?, &call.json()?)?),
        "link_list" => |ops, _| json!(ops.link_list()?),
        "link_set" => |ops, call| json!(ops.link_set(call.caller()?, &call.json()?)?),
        "link_change" => |ops, call| json!(ops.link_change(call.caller()?, &call.json()?)?),
        "limit_list" => |ops, _| json!(ops.limit_list()?),
        "limit_set" => |ops, call| json!(ops.limit_set(call.caller()?, &call.json()?)?),
        "audit_list" => |ops, call| {
            let of: Option<String> = call.query("of")?;
            json!(ops.audit_list(call.caller()?, of.as_deref(), &call.page()?)?)
        },
        "decision_list" => |ops, call| {
            let (of, who): (Option<String>, Option<String>) = (call.query("of")?, call.query("who")?);
            json!(ops.decision_list(
                call.caller()?,
                of.as_deref(),
                who,
                call.query("site")?,
                &call.page()?
            )?)
        },
        "circuit_list" => |ops, _| json!(ops.circuit_list()?),
        "circuit_show" => |ops, call| json!(ops.circuit_show(&call.parameter::<String>("circuit")?)?),
        "circuit_plan" => |ops, _| json!(ops.circuit_plan()?),
        "circuit_request" => |ops, call| json!(ops.circuit_request(call.caller()?, &call.json()?)?),
        "circuit_release" => {
            |ops, call| json!(ops.circuit_release(call.caller()?, &call.parameter::<String>("circuit")?)?)
        }
        "circuit_history" => |ops, call| json!(ops.circuit_history(&call.page()?)?),
        "measurement_send" | "measurement_put" => {
            |ops, call| json!(ops.measurement_send(call.caller()?, call.observer.as_deref(), &call.body)?)
        }
        "host_list" => |ops, call| json!(ops.host_list(&call.page()?)?),
        "host_set" => |ops, call| json!(ops.host_set(&call.json()?)?),
        "host_remove" => |ops, call| {
            ops.host_remove(&call.parameter::<String>("host")?)?;
            Ok(Answer::nothing())
        },
        "unmapped_list" => |ops, call| json!(ops.unmapped_list(&call.page()?)?),
        "archive_list" => |ops, _| json!(Page { items: ops.archive_list(), next: None }),
        "status" => |ops, _| json!(ops.status()?),
        "problem_list" => |ops, call| json!(ops.problem_list(&call.page()?)?),
        "rate_history" => |ops, call| {
            let (source, target) = (call.query("source")?, call.query("target")?);
            json!(ops.rate_history(source.as_ref(), target.as_ref(), call.query("seconds")?)?)
        },
        "network_show" => |ops, _| json!(ops.network_show()?),
        "network_links" => |ops, call| {
            let (source, target) = (call.query("source")?, call.query("target")?);
            json!(ops.network_links(source.as_ref(), target.as_ref(), &call.page()?)?)
        },
        "network_link" => |ops, call| {
            let more = MoreWork { files: call.query("files")?, bytes: call.query("bytes")? };
            json!(ops.network_link(&call.parameter("source")?, &call.parameter("target")?, more)?)
        },
        "network_export" => |ops, _| json!(ops.network_export()?),
        "network_import" => |ops, call| json!(ops.network_import(call.json()?)?),
        "check" => |ops, _| json!(ops.check()?),
        "whoami" => |ops, call| json!(ops.whoami(call.caller()?)),
        "token_list" => |ops, call| json!(ops.token_list(&call.page()?)?),
        "token_create" => |ops, call| json!(ops.token_create(call.caller()?, &call.json()?)?),
        "token_revoke" => |ops, call| {
            ops.token_revoke(&call.parameter::<String>("token")?)?;
            Ok(Answer::nothing())
        },
        "account_list" => |ops, call| json!(ops.account_list(&call.page()?)?),
        "account_add" => |ops, call| json!(ops.account_add(call.caller()?, &call.json()?)?),
        "account_change" => |ops, call| {
            json!(ops.account_change(call.caller()?, &call.parameter::<String>("account")?, &call.json()?)?)
        },
        "account_remove" => |ops, call| {
            ops.account_remove(call.caller()?, &call.parameter::<String>("account")?)?;
            Ok(Answer::nothing())
        },
        "session_login" => |ops, call| {
            let request: longhaul_api::native::LoginRequest = call.json()?;
            let login = ops.identity().session_login(&request.token, call.visitor.as_ref())?;
            let cookie = cookie::set(&login.cookie, call.secure);
            Ok(Answer::json(&login.reply)?.with_header(http::header::SET_COOKIE, &cookie))
        },
        "session_logout" => |ops, call| {
            if let Some(cookie) = &call.cookie {
                ops.identity().session_logout(cookie);
            }
            Ok(Answer::nothing().with_header(http::header::SET_COOKIE, &cookie::clear(call.secure)))
        },
        "login_token_create" => |ops, call| json!(ops.identity().login_token_create(call.caller()?)),
        "agent_join" => |ops, call| json!(ops.agent_join(&call.json()?)?),
        "agent_renew" => |ops, call| json!(ops.agent_renew(call.agent()?, &call.json()?)?),
        "openapi" => |_, _| json!(openapi::document()),
        "healthz" => |ops, _| health(&ops.healthz()),
        "readyz" => |ops, _| health(&ops.readyz()),
        "metrics" => |ops, _| Ok(Answer::text(ops.metrics())),
        _ => return None,
    })
}

fn health(health: &longhaul_api::native::Health) -> Result<Answer, Problem> {
    let mut answer = Answer::json(health)?;
    if !health.ok {
        answer.status = http::StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::routes;

    #[test]
    fn every_route_of_the_table_is_answered() {
        for route in routes::ALL {
            let streamed = STREAMED.contains(&route.operation);
            assert!(handler(route.operation).is_some() != streamed, "{}", route.operation);
        }
    }
}
