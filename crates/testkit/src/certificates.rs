//! A certificate authority in memory, and a TLS server with what it issued.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256,
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

    fn certify(&self, common_name: &str, hosts: &[&str], key: &KeyPair) -> (String, String) {
        let mut params = named(common_name, hosts);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.signed_by(key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
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
