//! Methods that change the tree: MKCOL, DELETE, MOVE, COPY. A failure replaces nothing, and only what the
//! request names is deleted.

use http::{StatusCode, header};
use longhaul_model::{Fault, FaultCode};
use longhaul_storage::{Directories, Entry};

use crate::answer::{Outcome, Refusal, empty};
use crate::conditions::check_for_change;
use crate::locks::WriteScope;
use crate::propfind::join;
use crate::put::{Batch, Incoming};
use crate::request::{Destination, RequestPath, may_overwrite, single};
use crate::rights::Action;
use crate::serve::{Call, DoorContext, blocking, directories};
use crate::third_party;

const PAGE_NAMES: usize = 1_024;
/// Deeper trees are copied or deleted in parts.
const DEPTH_MAX: usize = 64;

pub(crate) async fn make(mut call: Call) -> Outcome {
    if call.request.headers().contains_key(header::TRANSFER_ENCODING)
        || call.header("content-length")?.is_some_and(|length| length != "0")
        || !call.small_body(1).await?.is_empty()
    {
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "MKCOL takes no body"));
    }
    blocking(move || {
        let exists =
            || Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "there is something of this name already");
        if call.place.is_root() {
            return Err(exists());
        }
        call.check_locks(&[WriteScope::Members(call.place.parent())])?;
        let at = call.place.pfn(call.shared.storage().name())?;
        match directories(call.shared.storage().as_ref())?.make_directory(&at) {
            Ok(()) => {
                call.shared.properties.remove_all(&call.place.path);
                Ok(empty(StatusCode::CREATED))
            }
            Err(fault) if fault.code == FaultCode::NameClash => Err(exists()),
            Err(fault) => Err(fault.into()),
        }
    })
    .await
}

pub(crate) async fn delete(call: Call) -> Outcome {
    blocking(move || {
        let (shared, place) = (&call.shared, &call.place);
        if place.is_root() {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "the root of a storage is not deleted"));
        }
        let entry = there(&call, Action::Change)?;
        if !entry.is_directory && place.slash {
            return Err(missing());
        }
        check_for_change(call.request.headers(), Some(&entry.identity))?;
        call.check_locks(&[WriteScope::Tree(&place.path), WriteScope::Members(place.parent())])?;
        remove(&call, place, &entry)?;
        shared.locks().remove_below(&place.path);
        shared.properties.remove_all(&place.path);
        Ok(empty(StatusCode::NO_CONTENT))
    })
    .await
}

pub(crate) async fn rename(call: Call) -> Outcome {
    blocking(move || {
        let (shared, from) = (&call.shared, &call.place);
        let to = local_destination(&call)?;
        call.granted.check(Action::Create, &to.path)?;
        refuse_within(from, &to)?;
        let entry = there(&call, Action::Change)?;
        check_for_change(call.request.headers(), Some(&entry.identity))?;
        let found = admit_target(&call, &to)?;
        let away = [WriteScope::Tree(&from.path), WriteScope::Members(from.parent())];
        call.check_locks(&[&away[..], &arriving(&to, found.as_ref())].concat())?;
        // The tape's copy is under the file's name.
        let tape = shared.settings.tape.as_ref().filter(|_| !entry.is_directory);
        if let Some(end) = tape {
            end.tape.arriving(&to.path)?;
        }
        let moved = move_over(&call, (from, &entry), (&to, found.as_ref()));
        if let Some(end) = tape {
            end.tape.arrived(&to.path);
        }
        moved?;
        replaced(shared, &to, found.as_ref());
        // Locks stay with the name, and properties go with the file.
        shared.locks().remove_below(&from.path);
        follow(shared, from, &to, false);
        shared.properties.remove_all(&from.path);
        Ok(empty(if found.is_some() { StatusCode::NO_CONTENT } else { StatusCode::CREATED }))
    })
    .await
}

fn move_over(
    call: &Call,
    (from, entry): (&RequestPath, &Entry),
    (to, found): (&RequestPath, Option<&Entry>),
) -> Outcome<()> {
    let shared = &call.shared;
    let name = shared.storage().name();
    let (old, new) = (from.pfn(name)?, to.pfn(name)?);
    let directories = directories(shared.storage().as_ref())?;
    match found {
        // File over file is one step; a tree has to go first.
        Some(there) if !there.is_directory && !entry.is_directory => {
            directories.rename(&old, &new, Some(&there.identity))?;
        }
        Some(there) => {
            remove(call, to, there)?;
            directories.rename(&old, &new, None)?;
        }
        None => directories.rename(&old, &new, None)?,
    }
    Ok(())
}

/// Within this door, or with another server (see `third_party`).
pub(crate) async fn copy(call: Call) -> Outcome {
    let headers = call.request.headers();
    match (single(headers, "source")?, single(headers, "destination")?) {
        (Some(_), Some(_)) => {
            return Err(Refusal::bad("Source and Destination are given: one of them is needed"));
        }
        (Some(source), None) => {
            let source = source.to_owned();
            return third_party::pull(call, &source).await;
        }
        (None, Some(text)) => {
            if let Some(Destination::Elsewhere) = call.destination()? {
                let text = text.to_owned();
                return third_party::push(call, &text).await;
            }
        }
        (None, None) => return Err(Refusal::bad("the header Destination or Source is missing")),
    }
    let to = local_destination(&call)?;
    call.granted.check(Action::Read, &call.place.path)?;
    call.granted.check(Action::Create, &to.path)?;
    refuse_within(&call.place, &to)?;
    let shallow = !call.is_deep()?;
    let turn = call.shared.transfer_slot().await?;
    let answer = blocking(move || {
        let (shared, from) = (&call.shared, &call.place);
        let entry = there(&call, Action::Read)?;
        let found = admit_target(&call, &to)?;
        call.check_locks(&arriving(&to, found.as_ref()))?;
        let status = if found.is_some() { StatusCode::NO_CONTENT } else { StatusCode::CREATED };
        let was = found.clone();
        if !entry.is_directory {
            let replaced = match found {
                Some(there) if there.is_directory => {
                    remove(&call, &to, &there)?;
                    None
                }
                found => found,
            };
            self::replaced(shared, &to, was.as_ref());
            copy_file(&call, from, &to, replaced)?;
            follow(shared, from, &to, false);
            return Ok(empty(status));
        }
        if let Some(there) = found {
            remove(&call, &to, &there)?;
        }
        self::replaced(shared, &to, was.as_ref());
        let mut left = shared.settings.limits.entries;
        copy_tree(&call, from, &to, shallow, &mut left)?;
        follow(shared, from, &to, shallow);
        Ok(empty(status))
    });
    let answer = answer.await;
    drop(turn);
    answer
}

/// Lock scopes at the destination of a copy or move: a new name is a new member of its directory.
fn arriving<'a>(to: &'a RequestPath, found: Option<&Entry>) -> Vec<WriteScope<'a>> {
    let members = found.is_none().then(|| WriteScope::Members(to.parent()));
    [WriteScope::Tree(&to.path)].into_iter().chain(members).collect()
}

/// Drops the state of a replaced destination. A file over a file keeps the lock of its name.
fn replaced(shared: &DoorContext, to: &RequestPath, found: Option<&Entry>) {
    if found.is_some_and(|entry| entry.is_directory) {
        shared.locks().remove_below(&to.path);
    }
    shared.properties.remove_all(&to.path);
}

/// The file is there already: without its properties it is better than not at all.
fn follow(shared: &DoorContext, from: &RequestPath, to: &RequestPath, shallow: bool) {
    if let Err(refusal) = shared.properties.copy(&from.path, &to.path, shallow) {
        let path = longhaul_model::units::printable(&to.path);
        tracing::warn!(path, why = refusal.text, "properties of a file were not copied");
    }
}

fn missing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is no such file or directory")
}

/// The entry that a request is about.
pub(crate) fn there(call: &Call, action: Action) -> Outcome<Entry> {
    call.shared.look_up(&call.granted, action, &call.place)?.ok_or_else(missing)
}

fn local_destination(call: &Call) -> Outcome<RequestPath> {
    match call.destination()? {
        Some(Destination::Here(place)) => Ok(place),
        Some(Destination::Elsewhere) => {
            Err(Refusal::new(StatusCode::BAD_GATEWAY, "the destination is not at this door"))
        }
        None => Err(Refusal::bad("the header Destination is missing")),
    }
}

fn refuse_within(from: &RequestPath, to: &RequestPath) -> Outcome<()> {
    if to.is_within(from) || from.is_within(to) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "source and destination lie in each other"));
    }
    Ok(())
}

/// The entry at the destination, if it may be replaced; its directory has to exist.
fn admit_target(call: &Call, to: &RequestPath) -> Outcome<Option<Entry>> {
    let shared = &call.shared;
    let found = shared.look_up(&call.granted, Action::Change, to)?;
    if found.is_some() {
        if !may_overwrite(call.request.headers())? {
            return Err(Refusal::new(
                StatusCode::PRECONDITION_FAILED,
                "there is something at the destination",
            ));
        }
        call.granted.check(Action::Change, &to.path)?;
    }
    let parent = RequestPath { path: to.parent().to_owned(), slash: true };
    if !parent.is_root()
        && !shared.stat(&parent)?.is_some_and(|entry| entry.is_directory && entry.real_path.is_none())
    {
        return Err(Refusal::new(StatusCode::CONFLICT, "the directory of the destination is not there"));
    }
    Ok(found)
}

/// A file, an empty directory, or (where the administrator allows it) a tree, from its leaves on. Of a link,
/// the link.
fn remove(call: &Call, place: &RequestPath, entry: &Entry) -> Outcome<()> {
    let shared = &call.shared;
    let at = place.pfn(shared.storage().name())?;
    let Some(directories) = shared.storage().directories() else {
        return Ok(shared.storage().delete(&at, &entry.identity)?);
    };
    if !entry.is_directory || entry.real_path.is_some() {
        return Ok(directories.remove_file(&at, &entry.identity)?);
    }
    match directories.remove_directory(&at) {
        Err(fault) if fault.code == FaultCode::Conflict && shared.settings.delete_trees => {
            let mut left = shared.settings.limits.entries;
            remove_tree(call, directories, &place.path, 0, &mut left)
        }
        Err(fault) if fault.code == FaultCode::Conflict => {
            let text = "the directory is not empty: delete what is in it first";
            Err(Refusal::new(StatusCode::CONFLICT, text))
        }
        done => Ok(done?),
    }
}

/// What may not be looked at stays, and with it the directories above.
fn remove_tree(
    call: &Call,
    directories: &dyn Directories,
    path: &str,
    depth: usize,
    left: &mut usize,
) -> Outcome<()> {
    check_depth(depth)?;
    let shared = &call.shared;
    let pfn = |path: &str| RequestPath { path: path.to_owned(), slash: false }.pfn(shared.storage().name());
    loop {
        let page = shared.list((&call.granted, Action::Change), path, None, PAGE_NAMES)?;
        if page.entries.is_empty() {
            break;
        }
        for entry in &page.entries {
            count(left)?;
            let inner = join(path, &entry.name);
            match entry.is_directory && entry.real_path.is_none() {
                true => remove_tree(call, directories, &inner, depth + 1, left)?,
                false => directories.remove_file(&pfn(&inner)?, &entry.identity)?,
            }
        }
    }
    Ok(directories.remove_directory(&pfn(path)?)?)
}

fn copy_tree(
    call: &Call,
    from: &RequestPath,
    to: &RequestPath,
    shallow: bool,
    left: &mut usize,
) -> Outcome<()> {
    let shared = &call.shared;
    let directories = directories(shared.storage().as_ref())?;
    let mut open = vec![(from.clone(), to.clone(), 0)];
    while let Some((from, to, depth)) = open.pop() {
        check_depth(depth)?;
        directories.make_directory(&to.pfn(shared.storage().name())?)?;
        if shallow {
            return Ok(());
        }
        let mut after: Option<String> = None;
        loop {
            let page =
                shared.list((&call.granted, Action::Read), &from.path, after.as_deref(), PAGE_NAMES)?;
            for entry in &page.entries {
                count(left)?;
                let inner =
                    |place: &RequestPath| RequestPath { path: join(&place.path, &entry.name), slash: false };
                match entry.is_directory {
                    true => open.push((inner(&from), inner(&to), depth + 1)),
                    false => copy_file(call, &inner(&from), &inner(&to), None)?,
                }
            }
            after = page.more_after;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(())
}

fn check_depth(depth: usize) -> Outcome<()> {
    if depth > DEPTH_MAX {
        let text = format!("the tree is deeper than {DEPTH_MAX} directories: do it in parts");
        return Err(Refusal::new(StatusCode::FORBIDDEN, text));
    }
    Ok(())
}

fn count(left: &mut usize) -> Outcome<()> {
    *left = left.checked_sub(1).ok_or_else(|| {
        Refusal::new(StatusCode::FORBIDDEN, "the tree has too many entries for one request: do it in parts")
    })?;
    Ok(())
}

/// One version of the source becomes a new file.
fn copy_file(call: &Call, from: &RequestPath, to: &RequestPath, replaced: Option<Entry>) -> Outcome<()> {
    let shared = &call.shared;
    let file = shared.open_file(&call.granted, Action::Read, from)?;
    let identity = file.identity();
    let known = shared.remembered.get(&from.path, &identity);
    let found = replaced.map(|entry| entry.identity);
    let mut incoming = Incoming::begin(shared, to, Some(identity.size), known, found)?;
    let mut offset = 0;
    while offset < identity.size {
        let len = (identity.size - offset).min(crate::buffers::BUFFER_BYTES as u64);
        let is_last = offset + len == identity.size;
        let mut batch = Batch::default();
        batch.add(crate::body::read(file.as_ref(), &shared.buffers, (offset, len), is_last)?);
        incoming.take_here(batch)?;
        offset += len;
    }
    let unchanged = |found: Option<&longhaul_storage::Identity>| match found {
        None => Ok(()),
        Some(_) => Err(Fault::new(FaultCode::Conflict, "the destination changed meanwhile").into()),
    };
    incoming.finish(unchanged).map(drop)
}
