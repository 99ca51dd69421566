//! People with certificates of an authority of a grid, and their proxies, made as they make them: with
//! openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where everybody's names begin.
const USERS: &str = "/DC=org/DC=example/OU=Users";
const PROXY: &str = "basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature,keyEncipherment
proxyCertInfo=critical,language:id-ppl-inheritAll
";

/// An authority with a folder of its own.
pub struct Authority(PathBuf);

/// The file of a chain, its holder first, and that of the key.
#[derive(Clone)]
pub struct Holder {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

pub fn dn(name: &str) -> String {
    format!("{USERS}/CN={name}")
}

impl Authority {
    pub fn new(folder: &Path, name: &str) -> Authority {
        let authority = Authority(folder.join(name));
        fs::create_dir(&authority.0).unwrap();
        let subject = format!("/DC=org/DC=example/CN={name}");
        authority.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.pem -subj {subject}"
        ));
        authority
    }

    pub fn file(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// A folder of trusted authorities with this one, as grid software has it.
    pub fn trusted(&self) -> PathBuf {
        trusted(&self.file(), &self.0.join("certificates"))
    }

    pub fn user(&self, name: &str) -> Holder {
        self.user_with(name, &dn(name))
    }

    /// A user with that subject, in which `\\/` is a slash within a value.
    pub fn user_with(&self, name: &str, subject: &str) -> Holder {
        let extensions = "keyUsage=critical,digitalSignature,keyEncipherment\nsubjectKeyIdentifier=hash\n";
        self.issue(name, subject, extensions)
    }

    /// A proxy of a user that goes with the certificate request `csr_pem`, and the chain after it.
    pub fn delegate(&self, user: &str, subject: &str, csr_pem: &str) -> String {
        fs::write(self.0.join("delegated.csr"), csr_pem).unwrap();
        fs::write(self.0.join("proxy.ext"), PROXY).unwrap();
        let files = "-in delegated.csr -out delegated.pem -extfile proxy.ext -set_serial 4712";
        let signer = format!("-CA {user}.pem -CAkey {user}.key -subj {subject}/CN=4712");
        self.openssl(&format!("x509 -req -days 1 {signer} {files}"));
        let chain = [self.0.join("delegated.pem"), self.holder(user).certificate];
        chain.map(|file| fs::read_to_string(file).unwrap()).concat()
    }

    /// A proxy of a user with attributes of an organisation, as `voms-proxy-init` leaves it; none where there
    /// are no tools of VOMS. The folder says who may speak for the organisation.
    pub fn proxy_of(&self, user: &str, organisation: &str, fqans: &[&str]) -> Option<(Holder, PathBuf)> {
        const SERVER: &str = "voms.example.org";
        let tool = "voms-proxy-fake";
        if !Command::new(tool).arg("--version").output().is_ok_and(|ran| ran.status.success()) {
            return None;
        }
        let subject = format!("/DC=org/DC=example/CN={SERVER}");
        let (server, holder) =
            (self.issue(SERVER, &subject, "subjectKeyIdentifier=hash\n"), self.holder(user));
        let file = self.0.join(format!("{user}-voms.pem"));
        let mut command = Command::new(tool);
        command.arg("-cert").arg(&holder.certificate).arg("-key").arg(&holder.key);
        command.arg("-hostcert").arg(&server.certificate).arg("-hostkey").arg(&server.key);
        command.arg("-certdir").arg(&self.0).args(["-voms", organisation, "-uri", "voms.example.org:15001"]);
        command.args(fqans.iter().flat_map(|fqan| ["-fqan", fqan])).args(["-rfc", "-bits", "2048", "-out"]);
        let ran = command.arg(&file).env("HOME", &self.0).stdin(Stdio::null()).output().unwrap();
        let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(ran.status.success(), "{tool}: {said}");
        let folder = self.0.join("vomsdir");
        fs::create_dir_all(folder.join(organisation)).unwrap();
        let authority = format!("/DC=org/DC=example/CN={}", self.0.file_name().unwrap().to_str().unwrap());
        fs::write(folder.join(organisation).join("server.lsc"), format!("{subject}\n{authority}\n")).unwrap();
        // Its key stands between its certificate and its chain; both are found there.
        Some((Holder { certificate: file.clone(), key: file }, folder))
    }

    /// A server at that address.
    pub fn host(&self, address: &str) -> Holder {
        self.issue(
            address,
            &format!("/DC=org/DC=example/CN={address}"),
            &format!("subjectAltName=IP:{address}\n"),
        )
    }

    fn issue(&self, name: &str, subject: &str, extensions: &str) -> Holder {
        self.request(name, subject);
        fs::write(self.0.join("user.ext"), format!("basicConstraints=critical,CA:FALSE\n{extensions}"))
            .unwrap();
        let files = format!("-in {name}.csr -out {name}.pem -extfile user.ext");
        self.openssl(&format!("x509 -req -days 1 -CA ca.pem -CAkey ca.key -CAcreateserial {files}"));
        self.holder(name)
    }

    /// A proxy of a user of this authority, for an hour or so.
    pub fn proxy(&self, user: &str) -> Holder {
        let name = format!("{user}-proxy");
        self.request(&name, &format!("{}/CN=4711", dn(user)));
        fs::write(self.0.join("proxy.ext"), PROXY).unwrap();
        let files = format!("-in {name}.csr -out {name}.pem -extfile proxy.ext -set_serial 4711");
        self.openssl(&format!("x509 -req -days 1 -CA {user}.pem -CAkey {user}.key {files}"));
        let proxy = self.holder(&name);
        let chain = [&proxy.certificate, &self.holder(user).certificate];
        let chain = chain.map(|file| fs::read_to_string(file).unwrap()).concat();
        fs::write(&proxy.certificate, chain).unwrap();
        proxy
    }

    fn request(&self, name: &str, subject: &str) {
        self.openssl(&format!(
            "req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj {subject}"
        ));
    }

    pub fn holder(&self, name: &str) -> Holder {
        let file = |ending: &str| self.0.join(format!("{name}.{ending}"));
        Holder { certificate: file("pem"), key: file("key") }
    }

    fn openssl(&self, words: &str) {
        let ran = Command::new("openssl").args(words.split(' ')).current_dir(&self.0).output();
        let ran = ran.expect("openssl runs");
        assert!(ran.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}

/// A folder with that authority under the hash of its subject.
pub fn trusted(ca: &Path, folder: &Path) -> PathBuf {
    fs::create_dir(folder).unwrap();
    let hash = Command::new("openssl").args(["x509", "-noout", "-hash", "-in"]).arg(ca).output();
    let hash = String::from_utf8(hash.expect("openssl runs").stdout).unwrap();
    assert_eq!(hash.trim().len(), 8, "a hash has eight digits: {hash:?}");
    fs::copy(ca, folder.join(format!("{}.0", hash.trim()))).unwrap();
    folder.to_owned()
}
