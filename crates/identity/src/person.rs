//! A person in terms of the FTS3 API: identity, communities, and how far their rights reach.

use std::sync::Arc;

use http::HeaderValue;
use longhaul_api::fts::{self, BASE_ID, Level, Levels, Refusal, WhoAmI};
use longhaul_model::{FaultCode, Timestamp};
use longhaul_security::grid::GridIdentity;
use longhaul_security::{Area, ClientIdentity, Role, TokenRestrictions};

use crate::{Caller, FtsPerson, Identity, KnownBy, Origin, PresentedToken, Requester, bearer, refusal};

/// An authenticated user, or nobody.
#[derive(Clone, Debug)]
pub struct Person {
    /// The subject of a certificate without what proxies add to it, or of a token.
    pub dn: String,
    /// What administrators call them. Subjects of tokens are unique with their issuer only: another one could
    /// give somebody the subject of a certificate.
    pub name: String,
    pub fqans: Vec<String>,
    /// The first is whose work a job is.
    pub vos: Vec<String>,
    pub delegation_id: String,
    pub method: Method,
    pub known_by: KnownBy,
    pub is_root: bool,
    pub levels: Levels,
    pub scope: Option<String>,
    pub expires: Option<Timestamp>,
    /// The token with which they came.
    pub token: Option<Token>,
    /// What their certificate says, if they came with one.
    pub certificate: Option<Arc<GridIdentity>>,
    /// What an API token takes away from its holder's rights.
    pub confinement: TokenRestrictions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Certificate,
    Token,
    Nobody,
}

/// A bearer token; never shown.
#[derive(Clone)]
pub struct Token {
    pub text: String,
    /// By the profile of WLCG. Those of this deployment are by none.
    pub is_wlcg: bool,
    /// Whether storages may see it: one that is for this service alone would let them act here in its
    /// holder's name.
    pub for_storages: bool,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// Operations of which an administrator may do all.
const OPERATIONS: [&str; 5] = ["transfer", "deleg", "config", "datamanagement", "admin"];

pub(crate) fn unknown(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(401, format!("A valid X509 certificate or proxy is needed, or a token: {why}"))
}

fn not_allowed(operation: &str) -> Refusal {
    Refusal::forbidden(format!("Not enough permissions for the operation {operation}"))
}

impl Identity {
    /// The bearer token of a request, verified if another issuer made it.
    pub async fn presented_token(&self, header: Option<&HeaderValue>) -> Result<PresentedToken, Refusal> {
        bearer::presented(self, header).await
    }

    /// Authenticates by token or by certificate; the token wins. `requester` is filled in also when the
    /// request is refused.
    pub fn authenticate(
        &self,
        token: PresentedToken,
        origin: Option<&Origin>,
        requester: &mut Requester,
    ) -> Result<Person, Refusal> {
        requester.credential = match (&token, origin.map(|origin| &origin.identity)) {
            (PresentedToken::Local(_) | PresentedToken::Verified(..), _) => "a token that does not count",
            (PresentedToken::None, None | Some(Ok(None))) => "none",
            (PresentedToken::None, _) => "a certificate that does not count",
        };
        let person = match token {
            PresentedToken::Local(token) => Some(self.person_of_api_token(token)?),
            PresentedToken::Verified(identity, token) => {
                let ours = self.audiences();
                Some(bearer::person(&self.settings.fts, &ours, *identity, token))
            }
            PresentedToken::None => self.person_of_certificate(origin)?,
        };
        if let Some(person) = &person {
            (requester.who, requester.credential) = (person.name.clone(), person.credential());
            requester.right =
                if person.is_root { "administrator".to_owned() } else { format!("of {}", person.vo()) };
        }
        match person {
            Some(person) => self.authorised(person),
            None => Ok(Person::nobody()),
        }
    }

    /// The person behind a caller of the native API.
    pub fn person_of_caller(&self, caller: &Caller) -> Result<Person, Refusal> {
        self.authorised(self.known_person(caller))
    }

    /// Refuses banned people and adds what administrators granted.
    pub(crate) fn authorised(&self, mut person: Person) -> Result<Person, Refusal> {
        if self.access_rules.is_banned(&person.dn)? || self.access_rules.is_banned(&person.name)? {
            return Err(Refusal::forbidden("The user has been banned"));
        }
        // What is given to a name is not given to a token of it that is for one community only.
        if person.confinement.community.is_none() {
            for operation in self.access_rules.granted(&person.name)? {
                person.levels.insert(operation, longhaul_api::fts::Grant::LEVEL);
            }
        }
        let config = &self.settings.fts;
        if !person.is_root && !person.vos.first().is_some_and(|vo| config.serves(vo)) {
            person.levels.clear();
        }
        Ok(person)
    }

    fn person_of_api_token(&self, token: String) -> Result<Person, Refusal> {
        let caller = self.caller_of_token(&token).map_err(refusal)?;
        let token = Some(Token { text: token, is_wlcg: false, for_storages: false });
        Ok(Person { token, ..self.known_person(&caller) })
    }

    /// By the name of their credential, and its role.
    pub(crate) fn known_person(&self, caller: &Caller) -> Person {
        let config = &self.settings;
        let own = &caller.principal.name;
        let (dn, name) = caller.known_as().map_or((own, own), |known| (&known.dn, &known.name));
        let named = config.fts.person(name);
        let confined_to = caller.works_only_for();
        let is_root = caller.principal.role == Role::Admin && confined_to.is_none();
        let mut levels = match (is_root, named) {
            (true, _) => OPERATIONS.map(|operation| (operation.to_owned(), Level::All)).into(),
            (false, Some(named)) => named.levels(),
            (false, None) if caller.community().is_some() => user_levels(),
            (false, None) => Levels::new(),
        };
        // An administrator's own jobs are the deployment's.
        let of_deployment = is_root.then(|| config.deployment.clone());
        let of_login = || caller.community().map(str::to_owned);
        let vo = match confined_to {
            Some(community) => Some(community.as_str().to_owned()),
            None => {
                named.map(|named| named.community.as_str().to_owned()).or_else(of_login).or(of_deployment)
            }
        };
        if confined_to.is_some() {
            levels = within_community(levels);
        }
        let credential = caller.known_as().map(|known| known.credential.clone());
        Person {
            delegation_id: credential.unwrap_or_else(|| fts::delegation_id_of_token(&config.deployment, dn)),
            name: name.clone(),
            dn: dn.clone(),
            fqans: Vec::new(),
            vos: vo.into_iter().collect(),
            method: Method::Token,
            known_by: KnownBy::from_caller(caller),
            is_root,
            levels,
            scope: None,
            expires: caller.expires,
            token: None,
            certificate: None,
            confinement: TokenRestrictions {
                community: confined_to.cloned(),
                ..caller.confinement().clone()
            },
        }
    }

    /// Certificates of our agents are nobody's: machines submit no jobs.
    fn person_of_certificate(&self, origin: Option<&Origin>) -> Result<Option<Person>, Refusal> {
        let certificate = match origin.map(|origin| &origin.identity) {
            Some(Ok(Some(ClientIdentity::Grid(certificate)))) => certificate.clone(),
            Some(Ok(_)) | None => return Ok(None),
            // Who they are cannot be said, so they are not served as somebody without a certificate either.
            Some(Err(fault)) => return Err(unknown(&fault.detail)),
        };
        // A connection may outlive what it was opened with.
        if certificate.not_after <= self.wall_time() {
            return Err(unknown(format!("the certificate expired at {}", certificate.not_after)));
        }
        if let Some(problem) = &certificate.fqan_problem {
            tracing::debug!(user = certificate.subject, "attributes do not count: {problem}");
        }
        let (dn, delegation_id) = (certificate.subject.clone(), certificate.delegation_id());
        let named = self.settings.fts.person(&dn);
        Ok(Some(Person {
            fqans: certificate.fqans.clone(),
            vos: self.communities(&dn, certificate.vos(), named, &delegation_id)?,
            method: Method::Certificate,
            known_by: KnownBy::Certificate(certificate.vos()),
            is_root: false,
            levels: named.map_or_else(user_levels, FtsPerson::levels),
            scope: None,
            expires: Some(certificate.not_after),
            token: None,
            certificate: Some(certificate),
            confinement: TokenRestrictions::default(),
            delegation_id,
            name: dn.clone(),
            dn,
        }))
    }

    /// What is written about a user counts first, then what their proxy says, then the map, then the command
    /// that is asked. Where there is no command, whoever is of no community is one of their own, which is
    /// called `alone`.
    pub(crate) fn communities(
        &self,
        subject: &str,
        shown: Vec<String>,
        named: Option<&FtsPerson>,
        alone: &str,
    ) -> Result<Vec<String>, Refusal> {
        if let Some(named) = named {
            return Ok(vec![named.community.as_str().to_owned()]);
        }
        if !shown.is_empty() {
            return Ok(shown);
        }
        let mapped = self.users.community(subject, self.now());
        let mapped = mapped.map_err(|fault| match fault.code {
            FaultCode::NotAllowed => Refusal::forbidden(fault.detail),
            _ => Refusal::new(503, fault.detail),
        })?;
        Ok(vec![mapped.unwrap_or_else(|| alone.to_owned())])
    }
}

/// What is left of rights in one community.
fn within_community(levels: Levels) -> Levels {
    let kept = |operation: &str| operation == "transfer" || operation == "deleg";
    let narrowed = |level| if level == Level::All { Level::Vo } else { level };
    levels.into_iter().filter(|(name, _)| kept(name)).map(|(name, level)| (name, narrowed(level))).collect()
}

/// Users whom nobody named: their own jobs, and those of their community to see and to cancel.
pub(crate) fn user_levels() -> Levels {
    [("transfer", Level::Vo), ("deleg", Level::Own)].map(|(name, level)| (name.to_owned(), level)).into()
}

/// The jobs that a list is restricted to.
pub struct JobScope {
    pub vo: Option<String>,
    pub credential: Option<String>,
}

impl Person {
    pub(crate) fn nobody() -> Person {
        Person {
            dn: "anon".to_owned(),
            name: String::new(),
            fqans: Vec::new(),
            vos: Vec::new(),
            delegation_id: String::new(),
            method: Method::Nobody,
            known_by: KnownBy::Nothing,
            is_root: false,
            levels: Levels::new(),
            scope: None,
            expires: None,
            token: None,
            certificate: None,
            confinement: TokenRestrictions::default(),
        }
    }

    pub fn vo(&self) -> &str {
        self.vos.first().map_or("", String::as_str)
    }

    /// What kind of credential they showed.
    fn credential(&self) -> &'static str {
        match (self.method, &self.token) {
            (Method::Certificate, _) => "certificate",
            (Method::Token, Some(token)) if token.for_storages || token.text.contains('.') => {
                "issuer's token"
            }
            (Method::Token, _) => "API token",
            (Method::Nobody, _) => "none",
        }
    }

    /// Whether the credential is one for this kind of request.
    pub fn may_ask(&self, words: &[String], changes: bool) -> Result<(), Refusal> {
        let area = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["ban" | "config" | "status" | "admin" | "autocomplete", ..] => Some(Area::Steering),
            ["optimizer", ..] if changes => Some(Area::Steering),
            ["jobs" | "files" | "archive" | "delegation" | "dm" | "optimizer" | "cs", ..] => Some(Area::Jobs),
            _ => None,
        };
        let what = format!("/{}", words.first().map_or("", String::as_str));
        self.confinement.check(area, changes, &what).map_err(|fault| Refusal::forbidden(fault.detail))
    }

    /// As it is put into a job's metadata.
    pub fn auth_method(&self) -> &'static str {
        if self.method == Method::Certificate { "certificate" } else { "oauth2" }
    }

    pub fn level(&self, operation: &str) -> Option<Level> {
        self.levels.get(operation).copied()
    }

    /// The reach of a right that is needed at least for what is one's own.
    pub fn needs(&self, operation: &str) -> Result<Level, Refusal> {
        if self.method == Method::Nobody {
            return Err(unknown("no credential was shown"));
        }
        if self.levels.is_empty() {
            return Err(Refusal::forbidden("The user does not belong to any authorized vo"));
        }
        self.level(operation).ok_or_else(|| not_allowed(operation))
    }

    /// A right over what is everybody's.
    pub fn needs_all(&self, operation: &str) -> Result<(), Refusal> {
        match self.needs(operation)? {
            Level::All => Ok(()),
            _ => Err(not_allowed(operation)),
        }
    }

    pub fn needs_root(&self) -> Result<(), Refusal> {
        if self.method == Method::Nobody {
            return Err(unknown("no credential was shown"));
        }
        if self.is_root { Ok(()) } else { Err(Refusal::forbidden("User does not have root privileges")) }
    }

    /// Restricts a list of jobs, asked for with a VO and a credential, to what may be seen; None if the list
    /// would be empty.
    pub fn job_scope(
        &self,
        vo: Option<String>,
        credential: Option<String>,
    ) -> Result<Option<JobScope>, Refusal> {
        Ok(match self.needs("transfer")? {
            Level::All => Some(JobScope { vo, credential }),
            Level::Vo if vo.as_ref().is_some_and(|vo| !self.vos.contains(vo)) => None,
            Level::Vo => Some(JobScope { vo: Some(vo.unwrap_or_else(|| self.vo().to_owned())), credential }),
            Level::Own if !self.owns_across_communities() => {
                let vo = vo.unwrap_or_else(|| self.vo().to_owned());
                let credential = Some(self.delegation_id.clone());
                self.vos.contains(&vo).then_some(JobScope { vo: Some(vo), credential })
            }
            Level::Own => Some(JobScope { vo, credential: Some(self.delegation_id.clone()) }),
        })
    }

    /// The same person at work for one of their communities.
    pub fn working_for(&self, vo: &str) -> Option<Person> {
        let theirs = self.is_root || self.vos.iter().any(|mine| mine == vo);
        theirs.then(|| {
            let others = self.vos.iter().filter(|mine| *mine != vo).cloned();
            Person { vos: std::iter::once(vo.to_owned()).chain(others).collect(), ..self.clone() }
        })
    }

    /// Names of API tokens are given by administrators of each community: another community's token of the
    /// same name is another owner.
    fn owns_across_communities(&self) -> bool {
        self.known_by != KnownBy::ApiToken || self.is_root
    }

    /// Whether a job of that VO and credential is theirs.
    pub fn owns(&self, vo: &str, credential: &str) -> bool {
        let in_community = self.owns_across_communities() || self.vos.iter().any(|mine| mine == vo);
        self.method != Method::Nobody && credential == self.delegation_id && in_community
    }

    /// Whether a job of that VO and owner may be seen and changed.
    pub fn may_touch(&self, vo: &str, credential: &str) -> bool {
        let own = self.owns(vo, credential);
        match self.level("transfer") {
            Some(Level::All) => true,
            Some(Level::Vo) => own || self.vos.iter().any(|mine| mine == vo),
            Some(Level::Own) => own,
            None => false,
        }
    }

    pub fn whoami(&self) -> WhoAmI {
        let is_token = self.method == Method::Token;
        WhoAmI {
            user_dn: self.dn.clone(),
            dn: if self.method == Method::Nobody { Vec::new() } else { vec![self.dn.clone()] },
            base_id: BASE_ID,
            voms_cred: self.fqans.clone(),
            vos_id: self.vos.iter().map(|vo| fts::vo_id(vo)).collect(),
            vos: self.vos.clone(),
            roles: self.certificate.as_ref().map(|certificate| certificate.roles()).unwrap_or_default(),
            level: self.levels.clone(),
            delegation_id: self.delegation_id.clone(),
            method: match self.method {
                Method::Certificate => "certificate",
                Method::Token => "oauth2",
                Method::Nobody => "unauthenticated",
            },
            is_root: self.is_root,
            oauth2_scope: self.scope.clone().or(is_token.then(String::new)),
            wlcg_profile: is_token.then_some(self.token.as_ref().is_some_and(|token| token.is_wlcg)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anna(vo: &str, known_by: KnownBy) -> Person {
        Person {
            delegation_id: "8facbc69f57a9d60".into(),
            vos: vec![vo.into()],
            method: Method::Token,
            known_by,
            levels: Levels::from([("transfer".into(), Level::Own)]),
            ..Person::nobody()
        }
    }

    fn listed(person: &Person, vo: Option<&str>) -> Option<(Option<String>, Option<String>)> {
        let scope = person.job_scope(vo.map(str::to_owned), None).unwrap();
        scope.map(|scope| (scope.vo, scope.credential))
    }

    #[test]
    fn tokens_of_one_name_in_two_communities_are_two_owners() {
        let person = anna("higgs", KnownBy::ApiToken);
        let id = person.delegation_id.clone();
        assert!(person.may_touch("higgs", &id));
        assert!(!person.may_touch("top", &id), "another community's token of that name has submitted it");
        assert!(!person.may_touch("higgs", "0000000000000000"));
        let own = Some((Some("higgs".to_owned()), Some(id.clone())));
        assert_eq!((listed(&person, None), listed(&person, Some("higgs"))), (own.clone(), own));
        assert_eq!(listed(&person, Some("top")), None);
        let manager = Person {
            levels: Levels::from([("transfer".into(), Level::Vo)]),
            ..anna("higgs", KnownBy::ApiToken)
        };
        assert!(!manager.may_touch("top", &id) && manager.may_touch("higgs", "0000000000000000"));
    }

    /// Their names are unique wherever they work.
    #[test]
    fn people_with_certificates_and_issuers_own_their_jobs_in_every_community() {
        let issuer = KnownBy::Issuer { url: "https://iam.example".into(), communities: Vec::new() };
        for known_by in [KnownBy::Certificate(Vec::new()), issuer] {
            let person = anna("higgs", known_by);
            let id = person.delegation_id.clone();
            assert!(person.may_touch("top", &id));
            assert_eq!(listed(&person, None), Some((None, Some(id))));
        }
    }
}
