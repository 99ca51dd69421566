//! What the API document says of a text or number that not every value fits: made of what checks it, so that
//! the two cannot differ. Each type here stands, in `value_type` of a field, for the one of `model` with its
//! name, or for a text or number that the service checks with the constants here.
//!
//! Not here: the syntaxes of names (`model`), and those of parameters ([`crate::routes`]).

use std::borrow::Cow;
use std::ops::RangeInclusive;

use longhaul_model::Syntax;
use longhaul_model::id::STAMPED_SYNTAX;
use longhaul_model::limits::{PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN};
use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, KnownFormat, SchemaFormat};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! schema {
    ($name:ident, $schema:expr) => {
        #[doc = concat!("The schema of `", stringify!($name), "`.")]
        pub struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    };
}

macro_rules! texts {
    ($($name:ident: $syntax:expr, $description:literal;)*) => {
        $(schema!($name, text($syntax, $description));)*
    };
}

/// Syntax of a community, an activity or a region where another word, too, has a meaning.
macro_rules! name_or {
    ($other:literal) => {
        Syntax {
            pattern: concat!("^", $other, "$|^[A-Za-z0-9][A-Za-z0-9._-]*$"),
            chars_max: longhaul_model::SiteName::SYNTAX.chars_max,
        }
    };
}

macro_rules! ranges {
    ($($name:ident: $range:expr, $description:literal;)*) => {$(
        schema!($name, whole_number($range, $description));
        impl $name {
            /// Values that are accepted.
            pub const RANGE: RangeInclusive<u64> = $range;
            /// Whether a number is accepted.
            pub fn accepts(number: impl Into<u64>) -> bool {
                Self::RANGE.contains(&number.into())
            }
        }
    )*};
}

macro_rules! choices {
    ($($name:ident: [$($word:literal),*], $description:literal;)*) => {$(
        schema!($name, word($name::ALL.iter().copied(), $description));
        impl $name {
            /// All words that are accepted.
            pub const ALL: &[&str] = &[$($word),*];
        }
    )*};
}

macro_rules! words {
    ($($name:ident: $description:literal;)*) => {
        $(schema!($name, word(longhaul_model::$name::ALL.iter().map(|one| one.word()), $description));)*
    };
}

texts! {
    SiteName: longhaul_model::SiteName::SYNTAX, "Name of a site.";
    StorageName: longhaul_model::StorageName::SYNTAX, "Name of a storage.";
    RegionName: longhaul_model::RegionName::SYNTAX, "Name of a region.";
    CommunityName: longhaul_model::CommunityName::SYNTAX, "Name of a community.";
    ActivityName: longhaul_model::ActivityName::SYNTAX, "Name of an activity within a community.";
    DatasetName: longhaul_model::DatasetName::SYNTAX, "Name of a dataset: words joined by `/`.";
    BlockName: longhaul_model::BlockName::SYNTAX, "Name of a block: `DATASET#PART`.";
    AgentId: STAMPED_SYNTAX, "Id of an agent.";
    TaskId: STAMPED_SYNTAX, "Id of a task.";
    SubscriptionId: STAMPED_SYNTAX, "Id of a subscription.";
    TransferId: STAMPED_SYNTAX, "Id of a transfer.";
    AttemptId: STAMPED_SYNTAX, "Id of an attempt.";
    StageId: STAMPED_SYNTAX, "Id of an order to bring files from tape.";
    CircuitOrderId: STAMPED_SYNTAX, "Id of a request of a person about a circuit.";
    IncidentId: STAMPED_SYNTAX, "Id of an error, to find it in the logs.";
    CommunityOrAll: name_or!("\\*"), "Name of a community, or `*`.";
    ActivityOrOthers: name_or!("\\*"), "Name of an activity, or `*`.";
    CommunityOrEmpty: name_or!(""), "Name of a community, or empty.";
    RegionOrEmpty: name_or!(""), "Name of a region, or empty.";
    CommunityOrNone: name_or!("none"), "Name of a community, or `none`.";
    ActivityOrNone: name_or!("none"), "Name of an activity, or `none`.";
    SiteOrStorage: longhaul_model::SiteName::SYNTAX, "Name of a site or of a storage.";
    LimitedName: LIMITED_SYNTAX, "A storage, a community, or `SOURCE:TARGET`.";
    AccountName: ACCOUNT_NAME_SYNTAX, "Name of an account.";
    TokenName: TOKEN_NAME_SYNTAX, "Name of a token.";
}

/// Syntax of what a limit is set for.
const LIMITED_SYNTAX: Syntax = Syntax {
    pattern: "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$",
    chars_max: 2 * longhaul_model::StorageName::SYNTAX.chars_max + 1,
};
/// Syntax of the name of an account: no two that differ in capitals only.
pub const ACCOUNT_NAME_SYNTAX: Syntax = Syntax { pattern: "^[a-z0-9_.@+-]+$", chars_max: 64 };
/// Syntax of the name of a token.
pub const TOKEN_NAME_SYNTAX: Syntax = Syntax { pattern: "^[A-Za-z0-9_.@+ -]+$", chars_max: 64 };

ranges! {
    SubscriptionPriority: 1..=9, "Priority of a subscription within the activity, 1 (least) to 9.";
    JobPriority: 1..=5, "Priority of a job within the activity, 1 (least) to 5.";
    JoinTokenSeconds: 1..=30 * 24 * 3_600, "Life of a join token in seconds.";
    TokenSeconds: 1..=100 * 366 * 24 * 3_600, "Life of a token in seconds.";
    BytesPerSecond: 1..=i64::MAX as u64, "Rate in bytes per second.";
    CircuitMbit: 1..=crate::circuits::MBIT_MAX, "Bandwidth in Mbit/s.";
    CircuitSeconds: 1..=crate::circuits::SECONDS_MAX, "Life of a circuit in seconds.";
}

choices! {
    AccountRole: ["viewer", "manager", "admin"], "Role of an account.";
    TokenRole: ["observer", "viewer", "manager", "admin"], "Role of a token.";
    Scope: ["jobs", "data", "sites", "steering", "network", "access", "jobs:read", "data:read",
        "sites:read", "steering:read", "network:read", "access:read"],
        "Area that a token is confined to, with `:read` for reading only.";
    Strategy: ["best", "orderly", "queue", "auto", "success", "throughput", "file-throughput",
        "pending-data", "waiting-time", "waiting-time-with-error", "duration"],
        "How sources are chosen.";
    StrategyOrNone: ["none", "best", "orderly", "queue", "auto", "success", "throughput",
        "file-throughput", "pending-data", "waiting-time", "waiting-time-with-error", "duration"],
        "How sources are chosen, or `none`.";
    SpacePolicy: ["warn", "refuse"], "What happens to a subscription beyond the free space.";
    ChecksumEnd: ["source", "target", "both", "none"], "Where checksums are compared.";
    HostMapping: ["explicit", "imported"], "Where an entry of the mapping comes from.";
    HostRole: ["bandwidth", "latency", "both", "storage"], "What a host measures or is.";
    AddressFamily: ["v4", "v6"], "Version of the Internet Protocol.";
}

/// The most a weight of a share can be.
pub const WEIGHT_MAX: f64 = 1e6;
/// Characters of a reason that a person gives.
pub const REASON_CHARS_MAX: usize = 500;

schema!(Weight, number(WEIGHT_MAX, "Weight of a share."));
schema!(Reason, words_of_people(1, REASON_CHARS_MAX, "A reason, in words."));
schema!(ReasonOrEmpty, words_of_people(0, REASON_CHARS_MAX, "A reason, in words; empty: none."));
schema!(Password, password());
schema!(SitePair, pair(SiteName::schema(), "Source and target."));
schema!(Time, time("A time (RFC 3339), such as `2026-11-21T14:02:11Z`."));
schema!(TimeOrNone, time_or_none());

words! {
    Verification: "How thoroughly a file is verified.";
    SubscriptionState: "State of a subscription.";
    TransferState: "State of a transfer.";
    DigestOrigin: "Where digests come from.";
    Executor: "Who moved the bytes of an attempt.";
    StorageKind: "What holds the files of a storage.";
    PoolState: "What a pool of a storage is for.";
    TrafficClass: "Traffic class of a transfer.";
    CircuitUse: "Whether transfers use a circuit.";
    Blame: "Whose turn it is after a failure.";
    Algorithm: "Algorithm of a digest.";
}

fn text(syntax: Syntax, description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.pattern(Some(syntax.pattern)).max_length(Some(syntax.chars_max)).into()
}

fn word(words: impl Iterator<Item = &'static str>, description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.enum_values(Some(words)).into()
}

fn whole_number(range: RangeInclusive<u64>, description: &str) -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(Type::Integer).description(Some(description));
    number.minimum(Some(*range.start())).maximum(Some(*range.end())).into()
}

fn number(most: f64, description: &str) -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(Type::Number).description(Some(description));
    number.minimum(Some(0.0)).maximum(Some(most)).into()
}

fn words_of_people(chars_min: usize, chars_max: usize, description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.min_length(Some(chars_min)).max_length(Some(chars_max)).into()
}

/// Bytes are counted, so that fewer characters beyond ASCII fit.
fn password() -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some("A password."));
    let text = text.pattern(Some("^[^\\u0000-\\u001f\\u007f-\\u009f]*$"));
    text.min_length(Some(PASSWORD_CHARS_MIN)).max_length(Some(PASSWORD_BYTES_MAX)).into()
}

fn pair(item: RefOr<Schema>, description: &str) -> RefOr<Schema> {
    let pair = ArrayBuilder::new().items(item).description(Some(description));
    pair.min_items(Some(2)).max_items(Some(2)).into()
}

fn time(description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))).into()
}

fn time_or_none() -> RefOr<Schema> {
    let none = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["none"]));
    AnyOfBuilder::new().item(none).item(time("A time (RFC 3339).")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_says_what_its_type_checks() {
        let schema = serde_json::to_value(SiteName::schema()).unwrap();
        let syntax = longhaul_model::SiteName::SYNTAX;
        assert_eq!(
            (&schema["pattern"], &schema["maxLength"]),
            (&syntax.pattern.into(), &syntax.chars_max.into())
        );
        let schema = serde_json::to_value(Verification::schema()).unwrap();
        assert_eq!(schema["enum"], serde_json::json!(["wire", "end-to-end", "readback"]));
    }
}
