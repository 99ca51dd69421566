//! The files of a submission: each entry as the pairs of its sources and destinations.

use longhaul_model::job::JobFileState;
use serde_json::Value;

use super::fields::Fields;
use super::{FILES_MAX, Refusal, Rules, SubmittedFile};
use crate::fts::url;

const ACTIVITY_BYTES_MAX: usize = 255;
const CHECKSUM_BYTES_MAX: usize = 100;
const TOKEN_BYTES_MAX: usize = 32 << 10;
const SCITAGS: std::ops::RangeInclusive<i64> = 65..=65_535;

pub(super) fn parse(entries: &[Value], rules: &Rules) -> Result<Vec<SubmittedFile>, Refusal> {
    let mut files = Vec::with_capacity(entries.len().min(FILES_MAX));
    let mut index = 0;
    for entry in entries {
        let entry =
            entry.as_object().ok_or_else(|| Refusal::malformed("a file is expected to be a dictionary"))?;
        let entry = Fields::new("a file", entry);
        pairs(&entry, rules, &mut index, &mut files)?;
        if files.len() > FILES_MAX {
            return Err(Refusal::new(413, format!("a job has more than {FILES_MAX} files: submit several")));
        }
    }
    if files.is_empty() {
        return Err(Refusal::bad("No valid pairs available"));
    }
    let with_tokens = files.iter().filter(|file| file.source_token.is_some()).count();
    if with_tokens != 0 && with_tokens != files.len() {
        return Err(Refusal::bad("Either all files have source_tokens and destination_tokens, or none has"));
    }
    Ok(files)
}

/// Pairs every source with every destination. All sources of one destination are replicas and share an index.
fn pairs(
    entry: &Fields<'_>,
    rules: &Rules,
    index: &mut u32,
    files: &mut Vec<SubmittedFile>,
) -> Result<(), Refusal> {
    let sources = required(entry, "sources")?;
    let targets = required(entry, "destinations")?;
    let source_tokens = tokens(entry, "source_tokens", "sources", sources.len())?;
    let target_tokens = tokens(entry, "destination_tokens", "destinations", targets.len())?;
    if source_tokens.is_some() != target_tokens.is_some() {
        return Err(Refusal::bad("Both source_tokens and destination_tokens have to be given"));
    }
    if sources.len().saturating_mul(targets.len()) > FILES_MAX {
        return Err(Refusal::new(413, format!("a job has more than {FILES_MAX} files: submit several")));
    }
    let common = common(entry, rules)?;
    for (place, wanted) in targets.iter().enumerate() {
        let (target, target_se) = url::served(wanted, &rules.names, wanted)?;
        for (which, source) in sources.iter().enumerate() {
            let (source, source_se) = url::served(source, &rules.names, wanted)?;
            files.push(SubmittedFile {
                index: *index,
                source,
                source_se,
                target: target.clone(),
                target_se: target_se.clone(),
                source_token: source_tokens.as_ref().map(|tokens| tokens[which].to_owned()),
                target_token: target_tokens.as_ref().map(|tokens| tokens[place].to_owned()),
                ..common.clone()
            });
        }
        *index = index.saturating_add(1);
    }
    Ok(())
}

/// Values that all pairs of an entry share.
fn common(entry: &Fields<'_>, rules: &Rules) -> Result<SubmittedFile, Refusal> {
    let size = entry.integer("filesize")?.unwrap_or(0);
    let size = u64::try_from(size)
        .map_err(|_| Refusal::malformed(format!("filesize is {size}: it is never negative")))?;
    let activity = entry.short_text("activity", ACTIVITY_BYTES_MAX)?.filter(|text| !text.is_empty());
    let checksum = entry.short_text("checksum", CHECKSUM_BYTES_MAX)?.filter(|text| !text.is_empty());
    let strategy = entry.short_text("selection_strategy", ACTIVITY_BYTES_MAX)?;
    Ok(SubmittedFile {
        index: 0,
        source: String::new(),
        source_se: String::new(),
        target: String::new(),
        target_se: String::new(),
        size: (size > 0).then_some(size),
        checksum: checksum.unwrap_or("ADLER32").to_owned(),
        activity: activity.unwrap_or("default").to_owned(),
        state: JobFileState::Submitted,
        metadata: entry.metadata("metadata", rules.metadata_bytes)?,
        staging_metadata: entry.object("staging_metadata", rules.metadata_bytes)?,
        archive_metadata: entry.object("archive_metadata", rules.metadata_bytes)?,
        scitag: scitag(entry)?,
        selection_strategy: strategy.filter(|text| !text.is_empty()).unwrap_or("auto").to_owned(),
        source_token: None,
        target_token: None,
    })
}

fn required<'a>(entry: &Fields<'a>, name: &str) -> Result<Vec<&'a str>, Refusal> {
    entry.texts(name)?.ok_or_else(|| Refusal::bad(format!("Missing parameter: {name}")))
}

fn tokens<'a>(
    entry: &Fields<'a>,
    name: &str,
    of: &str,
    urls: usize,
) -> Result<Option<Vec<&'a str>>, Refusal> {
    let Some(tokens) = entry.texts(name)? else { return Ok(None) };
    if tokens.len() != urls {
        return Err(Refusal::bad(format!("Length of {name} should be equal to the length of {of}.")));
    }
    if tokens.iter().any(|token| token.is_empty() || token.len() > TOKEN_BYTES_MAX) {
        return Err(Refusal::bad(format!(
            "{name} has an empty token, or one longer than {TOKEN_BYTES_MAX} bytes"
        )));
    }
    Ok(Some(tokens))
}

fn scitag(entry: &Fields<'_>) -> Result<Option<u32>, Refusal> {
    let Some(scitag) = entry.integer("scitag")? else { return Ok(None) };
    if !SCITAGS.contains(&scitag) {
        return Err(Refusal::bad(format!("Invalid SciTag value: {scitag} (not in [65, 65535] range)")));
    }
    Ok(Some(scitag as u32))
}
