//! What the API document says of a text that has a syntax: made of what its type checks, so that the two
//! cannot differ. Each type here stands for the one of `model` with its name, in `value_type` of a field.
//!
//! Not here: the syntaxes themselves (`model`), and those of parameters ([`crate::routes`]).

use std::borrow::Cow;

use longhaul_model::Syntax;
use longhaul_model::id::STAMPED_SYNTAX;
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
    AgentId: STAMPED_SYNTAX, "Id of an agent.";
    TaskId: STAMPED_SYNTAX, "Id of a task.";
    SubscriptionId: STAMPED_SYNTAX, "Id of a subscription.";
    TransferId: STAMPED_SYNTAX, "Id of a transfer.";
    AttemptId: STAMPED_SYNTAX, "Id of an attempt.";
    CircuitOrderId: STAMPED_SYNTAX, "Id of a request of a person about a circuit.";
    IncidentId: STAMPED_SYNTAX, "Id of an error, to find it in the logs.";
}

words! {
    Verification: "How thoroughly a file is verified.";
    SubscriptionState: "State of a subscription.";
    TransferState: "State of a transfer.";
    TrafficClass: "Traffic class of a transfer.";
    CircuitUse: "Whether transfers use a circuit.";
    Blame: "Whose turn it is after a failure.";
}

fn text(syntax: Syntax, description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.pattern(Some(syntax.pattern)).max_length(Some(syntax.chars_max)).into()
}

fn word(words: impl Iterator<Item = &'static str>, description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.enum_values(Some(words)).into()
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
