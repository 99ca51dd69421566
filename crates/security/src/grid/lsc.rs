//! VOMS LSC files ("list of certificates"): which server may sign for a virtual organisation, by subject and
//! authority.

use super::name::canonical;

/// Bytes of an LSC file.
pub(super) const LSC_BYTES_MAX: u64 = 64 << 10;
/// Chains of one file.
const CHAINS_MAX: usize = 32;
/// Names of one chain.
const NAMES_MAX: usize = 16;

/// Chains of canonical subjects, the server's first; each has two names at least.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Vec<String>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    let mut chains = vec![Vec::new()];
    for (place, line) in text.lines().enumerate() {
        let line = line.trim();
        let bad = |why: &str| Err(format!("line {} {why}", place + 1));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // ------ NEXT CHAIN ------
        if line.starts_with("---") {
            if chains.len() == CHAINS_MAX {
                return bad("begins one chain too many");
            }
            chains.push(Vec::new());
            continue;
        }
        if !line.starts_with('/') {
            return bad("is no subject (/C=…)");
        }
        let Some(chain) = chains.last_mut() else { continue };
        if chain.len() == NAMES_MAX {
            return bad("is one name too many");
        }
        chain.push(canonical(line));
    }
    chains.retain(|chain| !chain.is_empty());
    match chains.iter().any(|chain| chain.len() < 2) {
        true => Err("has a chain of one name: the server's and its authority's are needed".into()),
        false if chains.is_empty() => Err("names no server".into()),
        false => Ok(chains),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_as_sites_have_them() {
        let chains = parse(
            b"# of the VO\n/DC=ch/CN=voms.example\n/DC=ch/Email=ca@x\n\n\
              ------ NEXT CHAIN ------\n/CN=a\n/CN=b\n/CN=c\n",
        )
        .unwrap();
        assert_eq!(
            chains,
            [vec!["/DC=ch/CN=voms.example", "/DC=ch/emailAddress=ca@x"], vec!["/CN=a", "/CN=b", "/CN=c"]]
        );
        let long = "/CN=a\n".repeat(NAMES_MAX + 1);
        let many = "/CN=a\n/CN=b\n---\n".repeat(CHAINS_MAX);
        for bad in ["", "/CN=a", "/CN=a\n---\n/CN=b\n/CN=c", "CN=a\n/CN=b", "\u{0}", &long, &many] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse(b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(/CN=a|\n|---|#|x){0,40}") {
            for chain in parse(text.as_bytes()).unwrap_or_default() {
                prop_assert!(chain.len() >= 2);
            }
        }
    }
}
