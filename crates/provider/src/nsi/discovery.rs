//! NSI discovery documents: the agent's description, and the topology of its network.

use crate::network::Network;
use crate::xml::escape;

pub(crate) const DESCRIPTION: &str = "/NSI/discovery.xml";
pub(crate) const TOPOLOGY: &str = "/NSI/topology.nml.xml";

pub(crate) fn description(nsa: &str, network: &str, base: &str) -> String {
    let base = escape(base);
    format!(
        "<?xml version=\"1.0\"?><nsa:nsa xmlns:nsa=\"http://schemas.ogf.org/nsi/2014/02/discovery/nsa\" \
            id=\"{nsa}\" \
         version=\"2026-01-01T00:00:00Z\"><name>simulated</name>\
         <networkId>urn:ogf:network:{network}</networkId>\
         <interface><type>application/vnd.ogf.nsi.topology.v2+xml</type>\
         <href>{base}{TOPOLOGY}</href></interface>\
         <interface><type>application/vnd.ogf.nsi.cs.v2.provider+soap</type>\
         <href>{base}/NSI/services/CS2</href></interface>\
         <feature type=\"vnd.ogf.nsi.cs.v2.role.uPA\"/></nsa:nsa>"
    )
}

pub(crate) fn topology(network: &str, known: &Network) -> String {
    let ports: String = known
        .ports()
        .iter()
        .map(|port| {
            let vlans: Vec<String> = port.vlans.iter().map(u16::to_string).collect();
            format!(
                "<nml:PortGroup id=\"urn:ogf:network:{network}:{}\"><nml:LabelGroup \
                labeltype=\"http://schemas.ogf.org/nml/2012/10/ethernet#vlan\">{}\
             </nml:LabelGroup></nml:PortGroup>",
                escape(&port.name),
                vlans.join(",")
            )
        })
        .collect();
    format!(
        "<?xml version=\"1.0\"?><nml:Topology xmlns:nml=\"http://schemas.ogf.org/nml/2013/05/base#\" \
            id=\"urn:ogf:network:{network}\">\
         {ports}</nml:Topology>"
    )
}
