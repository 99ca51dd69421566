//! Providers behind TLS: who has no certificate gets nothing, and who cannot prove to be the provider is told
//! nothing.

use std::fs;
use std::path::Path;

use longhaul_circuits::Answer;
use longhaul_testkit::CertificateAuthority;

use crate::bench::{Bench, Simulator};
use crate::{Kind, config};

/// An authority in `NAME.pem`, and what it has issued.
fn authority(place: &Path, name: &str, issued: &[&str]) {
    let path = |name: &str| place.join(name);
    let authority = CertificateAuthority::new(name);
    fs::write(path(&format!("{name}.pem")), &authority.ca_pem).unwrap();
    for name in issued {
        let (certificate, key) = authority.issue(name, &["127.0.0.1"]);
        fs::write(path(&format!("{name}.pem")), certificate).unwrap();
        fs::write(path(&format!("{name}.key")), key).unwrap();
    }
}

/// The settings of one who speaks to it over TLS. It describes itself in clear text, so that it is known from
/// the file.
fn over_tls(kind: Kind, simulator: &Simulator, more: &str) -> String {
    let service = simulator.service;
    let known = format!(
        "url = \"https://{service}/NSI/services/CS2\"\nprovider_nsa \
            = \"urn:ogf:network:example.net:2026:nsa\"\n"
    );
    let text = config(kind, Some(simulator), more).replace("http://", "https://");
    let lines = text.lines().filter(|line| !line.starts_with("discovery"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    if kind == Kind::NsiPolling { format!("{known}{text}") } else { text }
}

#[test]
fn mutual_tls_rejects_unknown_clients_and_authorities() {
    let place = tempfile::tempdir().unwrap();
    authority(place.path(), "ca", &["server", "client"]);
    authority(place.path(), "other", &["stranger"]);
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let trusted = |name: &str| format!("authorities = {:?}\n", path(name));
    let shown = |name: &str| {
        format!(
            "certificate = {:?}\nkey = {:?}\n",
            path(&format!("{name}.pem")),
            path(&format!("{name}.key"))
        )
    };
    let (ca, client) = (trusted("ca.pem"), shown("client"));
    for kind in [Kind::NsiPolling, Kind::Oscars, Kind::Sense] {
        for (more, is_known) in [
            (format!("{ca}{client}"), true),
            (ca.clone(), false),
            (format!("{ca}{}", shown("stranger")), false),
            // It is somebody else's, and nobody knows whose.
            (format!("{}{client}", trusted("other.pem")), false),
            (client.clone(), false),
        ] {
            println!("{kind:?} {more:?}");
            let arguments =
                ["--think", "0", "--tls", &path("server.pem"), &path("server.key"), &path("ca.pem")];
            let simulator = Simulator::start(&arguments);
            let text = over_tls(kind, &simulator, &more);
            let mut bench = Bench::new(&text, Some(simulator));
            let key = bench.request(400);
            match bench.answer(key) {
                Answer::Granted(_) if is_known => bench.tear_down(key),
                Answer::Refused { less: false, detail } if !is_known => {
                    assert!(detail.contains("certificate"), "{detail}");
                    let seen = bench.simulator().state()["seen"].as_array().unwrap().len();
                    assert_eq!(seen, 0, "not even a password was told");
                }
                other => panic!("{other:?}"),
            }
            bench.assert_nothing_is_left();
        }
    }
}
