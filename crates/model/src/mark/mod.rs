//! Marks on packets: for whom data travels, and how routers should treat it.
//!
//! A [`SciTag`] names an experiment and one of its activities by the numbers of a public [`Registry`]
//! (scitags.org). It goes into the flow label of IPv6 packets, into fireflies (`wire::firefly`), and as a
//! number into the `SciTag` header of copies between storages. A [`Dscp`] is the class that routers see. Both
//! together are a [`Mark`]; [`MarkTable`] assigns marks to work.
//!
//! Not here: sockets (`engine`), the text of a firefly (`wire`).

mod dscp;
mod registry;
mod table;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use dscp::Dscp;
pub use registry::{REGISTRY_BYTES_MAX, Registry};
pub use table::{MarkRule, MarkTable, Named, RULES_MAX, Treatment};

/// Bits of the number that hold the activity.
const ACTIVITY_BITS: u32 = 6;
/// An activity has six bits; 0 means none.
const ACTIVITY_MAX: u8 = (1 << ACTIVITY_BITS) - 1;
/// A number has sixteen bits.
const EXPERIMENT_MAX: u16 = u16::MAX >> ACTIVITY_BITS;
/// A flow label has nine bits for the experiment.
const EXPERIMENT_BITS_OF_LABEL: u32 = 9;
/// Entropy bits of a flow label, which differ from flow to flow: two, one and two of them.
const ENTROPY: u32 = 0b11 << 18 | 1 << 8 | 0b11;

/// An experiment and one of its activities, as numbered by scitags.org.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SciTag {
    experiment: u16,
    activity: u8,
}

impl SciTag {
    /// A tag from experiment (1 to 1023) and activity (1 to 63).
    ///
    /// # Errors
    /// A text for people, if a number is out of range.
    pub fn new(experiment: u16, activity: u8) -> Result<SciTag, String> {
        if !(1..=EXPERIMENT_MAX).contains(&experiment) {
            return Err(format!("experiment {experiment} is not in 1 to {EXPERIMENT_MAX}"));
        }
        if !(1..=ACTIVITY_MAX).contains(&activity) {
            return Err(format!("activity {activity} is not in 1 to {ACTIVITY_MAX}"));
        }
        Ok(SciTag { experiment, activity })
    }

    /// A tag from the 16-bit number that headers and jobs carry.
    ///
    /// # Errors
    /// A text for people, if the number has no experiment or no activity.
    pub fn from_number(number: u32) -> Result<SciTag, String> {
        let number = u16::try_from(number).map_err(|_| format!("{number} is no SciTag: at most 65535"))?;
        let activity = (number & u16::from(ACTIVITY_MAX)) as u8;
        SciTag::new(number >> ACTIVITY_BITS, activity).map_err(|why| format!("{number} is no SciTag: {why}"))
    }

    /// The number that headers and jobs carry: experiment in the upper ten bits, activity in the lower six.
    pub fn number(self) -> u16 {
        self.experiment << ACTIVITY_BITS | u16::from(self.activity)
    }

    /// Number of the experiment, 1 to 1023.
    pub fn experiment(self) -> u16 {
        self.experiment
    }

    /// Number of the activity, 1 to 63.
    pub fn activity(self) -> u8 {
        self.activity
    }

    /// The flow label of an IPv6 flow, with its entropy taken from `random`. None if the experiment does not
    /// fit into the nine bits that a label has for it.
    ///
    /// ```text
    /// bit 1 (first) .. 20    E E │ experiment, last bit first (9) │ E │ activity (6) │ E E
    /// ```
    pub fn flow_label(self, random: u32) -> Option<u32> {
        if self.experiment >> EXPERIMENT_BITS_OF_LABEL != 0 {
            return None;
        }
        let experiment = u32::from(reverse(self.experiment)) << 9;
        Some(random & ENTROPY | experiment | u32::from(self.activity) << 2)
    }

    /// The tag that a flow label carries; none if it cannot be one of ours.
    pub fn from_flow_label(label: u32) -> Option<SciTag> {
        let experiment = reverse((label >> 9 & 0x1FF) as u16);
        let activity = (label >> 2) as u8 & ACTIVITY_MAX;
        SciTag::new(experiment, activity).ok()
    }
}

/// Reverses the nine bits of an experiment, so that labels of low-numbered experiments differ in their first
/// bits.
fn reverse(experiment: u16) -> u16 {
    experiment.reverse_bits() >> (u16::BITS - EXPERIMENT_BITS_OF_LABEL)
}

impl fmt::Display for SciTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.experiment, self.activity)
    }
}

impl Serialize for SciTag {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.number())
    }
}

impl<'de> Deserialize<'de> for SciTag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        SciTag::from_number(u32::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Marks of all packets of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// Experiment and activity, in the flow label and in fireflies; none: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scitag: Option<SciTag>,
    /// Forwarding class; none: the default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
}

impl Mark {
    /// Whether packets bear no mark at all.
    pub fn is_none(&self) -> bool {
        *self == Mark::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_label_is_that_of_the_draft() {
        // ATLAS, data challenge; no entropy.
        let tag = SciTag::new(2, 26).unwrap();
        assert_eq!(tag.number(), 154);
        assert_eq!(tag.flow_label(0), Some(0x10068));
        assert_eq!(tag.flow_label(u32::MAX), Some(0x10068 | 0xC0103));
        assert_eq!(SciTag::new(512, 1).unwrap().flow_label(0), None, "it has ten bits");
        assert_eq!(SciTag::from_flow_label(0), None);
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        assert_eq!(SciTag::from_number(65), SciTag::new(1, 1));
        assert_eq!(SciTag::from_number(65_535), SciTag::new(1023, 63));
        for wrong in [0, 1, 63, 64, 128, 65_536, u32::MAX] {
            let why = SciTag::from_number(wrong).unwrap_err();
            assert!(why.contains(&wrong.to_string()), "{why}");
        }
        assert!(SciTag::new(0, 1).is_err() && SciTag::new(1, 0).is_err() && SciTag::new(1, 64).is_err());
    }

    #[test]
    fn a_mark_is_short_as_json() {
        let mark = Mark { scitag: SciTag::new(3, 12).ok(), dscp: "le".parse().ok() };
        let text = serde_json::to_string(&mark).unwrap();
        assert_eq!(text, r#"{"scitag":204,"dscp":"le"}"#);
        assert_eq!(serde_json::from_str::<Mark>(&text).unwrap(), mark);
        assert_eq!(serde_json::to_string(&Mark::default()).unwrap(), "{}");
        assert!(serde_json::from_str::<Mark>(r#"{"scitag":64}"#).is_err());
    }

    proptest! {
        #[test]
        fn a_label_tells_its_tag_whatever_the_entropy(experiment in 1..512_u16, activity in 1..64_u8,
            random in any::<u32>()) {
            let tag = SciTag::new(experiment, activity).unwrap();
            let label = tag.flow_label(random).unwrap();
            prop_assert!(label < 1 << 20);
            prop_assert_eq!(SciTag::from_flow_label(label), Some(tag));
            prop_assert_eq!(label & ENTROPY, random & ENTROPY);
            prop_assert_eq!(SciTag::from_number(tag.number().into()), Ok(tag));
        }
    }
}
