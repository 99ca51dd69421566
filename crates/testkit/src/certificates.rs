//! A certificate authority in memory, and a TLS server with what it issued.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256,
    RevokedCertParams, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub struct CertificateAuthority {
    pub ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    pub fn new(name: &str) -> CertificateAuthority {
        let key = KeyPair::generate().unwrap();
        let mut params = named(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_pem = params.self_signed(&key).unwrap().pem();
        CertificateAuthority { ca_pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key in PEM, for a server of these hosts and for a client.
    pub fn issue(&self, common_name: &str, hosts: &[&str]) -> (String, String) {
        self.certify(common_name, hosts, &KeyPair::generate().unwrap())
    }

    /// The same with an RSA key.
    pub fn issue_rsa(&self, common_name: &str, hosts: &[&str]) -> (String, String) {
        self.certify(common_name, hosts, &KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap())
    }

    /// For a client whose subject has these parts in this order, each of another type, and that serial
    /// number.
    pub fn issue_subject(&self, subject: &[(&str, &str)], serial: u64) -> (String, String) {
        let mut params = named("", &[]);
        params.distinguished_name = subject_of(subject);
        params.serial_number = Some(serial.into());
        self.sign(params, &KeyPair::generate().unwrap())
    }

    /// What this authority has revoked, in PEM; good for decades.
    pub fn revocation_list(&self, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2025, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn certify(&self, common_name: &str, hosts: &[&str], key: &KeyPair) -> (String, String) {
        self.sign(named(common_name, hosts), key)
    }

    fn sign(&self, mut params: CertificateParams, key: &KeyPair) -> (String, String) {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.signed_by(key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Each type once: a `DistinguishedName` holds no more.
fn subject_of(parts: &[(&str, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in parts {
        let kind = match *kind {
            "CN" => DnType::CommonName,
            "O" => DnType::OrganizationName,
            "OU" => DnType::OrganizationalUnitName,
            "DC" => DnType::CustomDnType(vec![0, 9, 2342, 19200300, 100, 1, 25]),
            other => panic!("no such attribute: {other}"),
        };
        name.push(kind, *value);
    }
    name
}

fn named(common_name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

/// TLS with this certificate and key, for clients without certificates.
pub fn server_tls((certificate_pem, key_pem): &(String, String)) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(certificate_pem.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}
