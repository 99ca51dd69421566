//! Clients and formats of outside systems that know something of use to us: perfSONAR's measurement archives
//! and meshes, the site directories of grids (CRIC), the name rules of PhEDEx's sites, the keys of issuers of
//! tokens, and who logs in there ([`openid`]); brokers, whom we tell; and the files by which fdtcp is told
//! what to copy.
//!
//! What comes from outside is read leniently and within bounds: an item that makes no sense is counted and
//! left out, a document that makes none is a `Fault`, and nothing panics. This room translates and never
//! decides: what a measurement means for a link is `network`'s, which host belongs to which site is
//! [`longhaul_network::mapping`]'s.
//!
//! Start with [`perfsonar::Harvest`], which is what every form of perfSONAR's results becomes; and with
//! [`circuits::ProviderDriver`], behind which every provider of circuits stands.

pub mod brokers;
pub mod circuits;
pub mod copyjob;
pub mod cric;
pub mod issuers;
mod lenient;
pub mod openid;
pub mod perfsonar;
pub mod storage_xml;
pub mod token_endpoint;

pub use longhaul_outbound::read_authorities;
