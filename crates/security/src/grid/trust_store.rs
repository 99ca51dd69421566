//! The trust store: one snapshot of the directories, with authorities, signing policies and revocation lists
//! (RFC 5280).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{Fault, Timestamp};
use rustls::pki_types::{CertificateDer, TrustAnchor};

use super::certificate::Certificate;
use super::chain::refused;
use super::files::{AuthorityFile, Files, GridSettings, Revocation, VomsFile, is_about_an_authority, stem};
use super::name::{Name, canonical};
use super::policy::{Issuer, Rule};
use super::revocation::RevocationList;
use super::voms::Organisation;

/// A revocation list that expires within this time is reported as a problem.
const LIST_EXPIRES_SOON: Duration = Duration::from_secs(86_400);
/// Key usage bit `cRLSign`.
const SIGNS_LISTS: u16 = 0x0200;

/// An immutable snapshot of the directories; replaced as a whole.
#[derive(Debug, Default)]
pub(super) struct TrustStore {
    pub(super) generation: u64,
    revocation: Revocation,
    require_policy: bool,
    hosts: Vec<String>,
    authorities: Vec<Authority>,
    anchors: Vec<TrustAnchor<'static>>,
    /// By the authority's canonical subject.
    signing_policies: BTreeMap<String, Vec<Rule>>,
    namespaces: BTreeMap<String, Vec<Rule>>,
    /// Verified lists by the authority's name.
    lists: HashMap<Vec<u8>, Vec<(String, Arc<AuthorityFile>)>>,
    /// Authorities that are disabled, by name, and why: some of their files cannot be read.
    disabled: HashMap<Vec<u8>, String>,
    organisations: BTreeMap<String, Organisation>,
    pub(super) problems: Vec<String>,
}

#[derive(Debug)]
struct Authority {
    der: CertificateDer<'static>,
    /// Self-issued: chains may end here.
    root: bool,
    name: Vec<u8>,
    subject: String,
    key: Vec<u8>,
    not_after: Timestamp,
    signs_lists: bool,
    /// The files in which it was found.
    stems: BTreeSet<String>,
}

impl TrustStore {
    pub(super) fn from_files(files: &Files, settings: &GridSettings, generation: u64) -> Self {
        let mut trusted = TrustStore {
            generation,
            revocation: settings.revocation,
            require_policy: settings.require_policy,
            hosts: settings.hosts.clone(),
            ..TrustStore::default()
        };
        for (file, content) in files.authorities.contents() {
            if let AuthorityFile::Authorities(certificates) = &**content {
                certificates.iter().for_each(|der| trusted.add_authority(file, der));
            }
        }
        for (file, content) in files.authorities.contents() {
            match &**content {
                AuthorityFile::Authorities(_) => {}
                AuthorityFile::Revocations(list) => trusted.add_list(file, list, content),
                AuthorityFile::SigningPolicy(rules) => trusted.add_rules(file, rules, false),
                AuthorityFile::Namespaces(rules) => trusted.add_rules(file, rules, true),
            }
        }
        for file in files.authorities.unreadable().filter(|file| is_about_an_authority(file)) {
            trusted.disable(file);
        }
        for (vo, directory) in &files.organisations {
            let organisation = trusted.organisations.entry(vo.clone()).or_default();
            for (_, content) in directory.contents() {
                match &**content {
                    VomsFile::Chains(chains) => organisation.chains.extend(chains.iter().cloned()),
                    VomsFile::Certificates(list) => organisation.certificates.extend(list.iter().cloned()),
                }
            }
        }
        trusted
    }

    fn add_authority(&mut self, file: &str, der: &CertificateDer<'static>) {
        if let Some(known) = self.authorities.iter_mut().find(|known| known.der == *der) {
            known.stems.insert(stem(file).to_owned());
            return;
        }
        let Ok(certificate) = Certificate::parse(der) else { return };
        let root = certificate.subject == certificate.issuer;
        if root {
            match webpki::anchor_from_trusted_cert(der) {
                Ok(anchor) => self.anchors.push(anchor.to_owned()),
                Err(error) => {
                    self.problems.push(format!("{file}: holds an authority that cannot be used: {error}"));
                    return;
                }
            }
        }
        let usage = certificate.key_usage().unwrap_or(Some(0));
        self.authorities.push(Authority {
            der: der.clone(),
            root,
            name: certificate.subject.0.to_vec(),
            subject: canonical(&certificate.subject_text()),
            key: certificate.key.to_vec(),
            not_after: certificate.not_after,
            signs_lists: usage.is_none_or(|usage| usage & SIGNS_LISTS != 0),
            stems: BTreeSet::from([stem(file).to_owned()]),
        });
    }

    fn add_list(&mut self, file: &str, list: &RevocationList, content: &Arc<AuthorityFile>) {
        let mut named = self.authorities.iter().filter(|authority| authority.name == list.issuer).peekable();
        if named.peek().is_none() {
            let issuer = Name(&list.issuer).one_line().unwrap_or_default();
            return self.problems.push(format!("{file}: is of an authority that is not here: {issuer}"));
        }
        if named.any(|authority| authority.signs_lists && list.is_signed_by(&authority.key)) {
            self.lists.entry(list.issuer.clone()).or_default().push((file.to_owned(), content.clone()));
            return;
        }
        let why = format!("{file}: is not signed by its authority");
        self.disabled.insert(list.issuer.clone(), why.clone());
        self.problems.push(why);
    }

    fn add_rules(&mut self, file: &str, rules: &[Rule], namespaces: bool) {
        let own: Vec<String> = self
            .authorities
            .iter()
            .filter(|authority| authority.stems.contains(stem(file)))
            .map(|authority| authority.subject.clone())
            .collect();
        if own.is_empty() && rules.iter().any(|rule| rule.issuer == Issuer::Own) {
            self.problems.push(format!("{file}: is about its own authority, and there is none of its name"));
        }
        let policies = if namespaces { &mut self.namespaces } else { &mut self.signing_policies };
        for rule in rules {
            let issuers = match &rule.issuer {
                Issuer::Named(issuer) => std::slice::from_ref(issuer),
                Issuer::Own => &own[..],
            };
            for issuer in issuers {
                policies.entry(issuer.clone()).or_default().push(rule.clone());
            }
        }
    }

    /// Disables the authorities of an unreadable list or policy, which may restrict them.
    fn disable(&mut self, file: &str) {
        for authority in self.authorities.iter().filter(|authority| authority.stems.contains(stem(file))) {
            self.disabled.insert(authority.name.clone(), format!("its file {file} cannot be read"));
        }
    }

    pub(super) fn authorities(&self) -> impl ExactSizeIterator<Item = &CertificateDer<'static>> {
        self.authorities.iter().map(|authority| &authority.der)
    }

    pub(super) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    pub(super) fn intermediates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.authorities.iter().filter(|authority| !authority.root).map(|authority| &authority.der)
    }

    pub(super) fn voms(&self, vo: &str) -> Option<&Organisation> {
        self.organisations.get(vo)
    }

    /// `fts.example.org`, or an address there.
    pub(super) fn is_our_host(&self, target: &str) -> bool {
        let rest = target.split_once("://").map_or(target, |(_, rest)| rest);
        let host = rest.split(['/', ':']).next().unwrap_or(rest);
        self.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(host))
    }

    /// Checks that the issuer may have issued a certificate and has not revoked it. Returns its subject, and
    /// until when the result holds.
    pub(super) fn check_issued(
        &self,
        certificate: &Certificate<'_>,
        now: Timestamp,
    ) -> Result<(String, Option<Timestamp>), Fault> {
        let issuer = one_line_name(certificate.issuer)?;
        if let Some(why) = self.disabled.get(certificate.issuer.0) {
            return Err(refused(format!("nothing by {issuer} counts here now: {why}")));
        }
        self.check_policy(&canonical(&issuer), &one_line_name(certificate.subject)?)?;
        let expires = self.check_expiry(certificate.issuer, &issuer, now)?;
        let until = self.check_revocation(certificate, &issuer, now)?;
        Ok((issuer, expires.into_iter().chain(until).min()))
    }

    /// webpki does not check the expiry of roots. Of those with one name, the last to expire counts.
    fn check_expiry(&self, name: Name<'_>, issuer: &str, now: Timestamp) -> Result<Option<Timestamp>, Fault> {
        let named = self.authorities.iter().filter(|authority| authority.name == name.0);
        match named.map(|authority| authority.not_after).max() {
            Some(expired) if expired < now => Err(refused(format!(
                "the authority {issuer} expired at {expired}: its new certificate is missing here"
            ))),
            expires => Ok(expires),
        }
    }

    /// Namespaces are more precise than signing policies, so they take precedence where an authority has
    /// both.
    fn check_policy(&self, issuer: &str, subject: &str) -> Result<(), Fault> {
        let Some(rules) = self.namespaces.get(issuer).or_else(|| self.signing_policies.get(issuer)) else {
            if self.require_policy {
                return Err(refused(format!("nothing says which subjects {issuer} may sign")));
            }
            return Ok(());
        };
        let canonical = canonical(subject);
        let matching = || rules.iter().filter(|rule| rule.matches(&canonical));
        if matching().any(|rule| rule.permit) && matching().all(|rule| rule.permit) {
            return Ok(());
        }
        Err(refused(format!("{issuer} may not sign {subject}: its policy does not permit this subject")))
    }

    fn check_revocation(
        &self,
        certificate: &Certificate<'_>,
        issuer: &str,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Fault> {
        if self.revocation == Revocation::Ignore {
            return Ok(None);
        }
        let Some(newest) = self.lists_of(certificate.issuer.0).max_by_key(|list| list.this_update) else {
            return match self.revocation {
                Revocation::Require => Err(refused(format!("{issuer} has no revocation list here"))),
                Revocation::IfPresent | Revocation::Ignore => Ok(None),
            };
        };
        if self.lists_of(certificate.issuer.0).any(|list| list.revokes(certificate.serial)) {
            return Err(refused(format!("{} has been revoked by its authority", certificate.subject_text())));
        }
        if newest.this_update > now {
            return Err(refused(format!(
                "the revocation list of {issuer} is not valid yet: are the clocks right?"
            )));
        }
        if let Some(expired) = newest.next_update.filter(|next| *next < now) {
            let detail = format!(
                "the revocation list of {issuer} expired at {expired}: this service has to fetch a new one \
                    (fetch-crl)"
            );
            return Err(refused(detail));
        }
        Ok(newest.next_update)
    }

    fn lists_of(&self, issuer: &[u8]) -> impl Iterator<Item = &RevocationList> {
        self.lists.get(issuer).into_iter().flatten().filter_map(|(_, content)| match &**content {
            AuthorityFile::Revocations(list) => Some(list),
            _ => None,
        })
    }

    pub(super) fn lists_that_expire(&self, now: Timestamp) -> impl Iterator<Item = String> {
        self.lists.values().flatten().filter_map(move |(file, content)| match &**content {
            AuthorityFile::Revocations(list) => {
                let next = list.next_update.filter(|next| *next < now + LIST_EXPIRES_SOON)?;
                let tense = if next < now { "expired" } else { "expires" };
                Some(format!("{file}: the revocation list {tense} at {next}"))
            }
            _ => None,
        })
    }
}

pub(super) fn one_line_name(name: Name<'_>) -> Result<String, Fault> {
    name.one_line().map_err(|why| refused(format!("a name in the chain is malformed: {why}")))
}
