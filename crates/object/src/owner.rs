//! Who may write to a directory. One process at a time owns it; who comes after a dead one takes
//! over, and what the dead one still does then does not count.
//!
//! An owner makes these objects, in this order:
//!
//! 1. `alive/EPOCH-NONCE`, its sign of life, which it makes again every few seconds;
//! 2. `owner/EPOCH`, its claim, with the condition that nobody has made it. Where the server
//!    ignores conditions, the nonce is in the name, and whoever then sees another claim gives way;
//! 3. after it has listed the directory: `seal/EPOCH-NONCE`, what counts of all earlier owners.
//!
//! An owner that says that something is durable has looked after it was written, and has seen no
//! newer claim. So whoever takes over later lists it, and has it in the seal. What an earlier owner
//! writes after that is in no seal, and no reader sees it.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use object_store::path::Path;
use outcrop_layers::files::Holder;
use serde::{Deserialize, Serialize};

use crate::{
    failure::{Cause, Failure},
    names::{ALIVE, ClaimName, Contents, OWNER, OwnerId, SEAL, Sealed, Tag},
    process::{Process, Seen},
    remote::{Core, Result},
};

/// The largest claim or seal. A seal has some 60 bytes for each file.
const BYTES_MAX: u64 = 256 << 20;

/// How often an owner gives a sign of life while its lease lasts.
const SIGNS: u32 = 6;

/// How often two that claim at once give way, where the server ignores conditions.
const ATTEMPTS: u32 = 5;

/// How often a directory is listed until its seal can be read.
const LOOKS_MAX: usize = 10;

/// Times of objects have whole seconds, and servers have several clocks.
const MARGIN: Duration = Duration::from_secs(3);

/// What a claim says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) format: u32,
    pub(crate) epoch: u32,
    /// In hexadecimal digits: numbers of this size are not safe in JSON.
    nonce: String,
    /// Whether the server keeps conditions.
    pub(crate) is_conditional: bool,
    lease_seconds: u64,
    pub(crate) process: Process,
}

const FORMAT: u32 = 1;

impl Claim {
    fn id(&self) -> Option<OwnerId> {
        OwnerId::parse(&format!("{:08x}-{}", self.epoch, self.nonce))
    }

    /// Who has made it.
    pub(crate) fn holder(&self) -> Holder {
        match self.process.seen() {
            Seen::Here => Holder::Here,
            Seen::Unknown => Holder::Other(format!(
                "process {} on {}; if it has crashed, it counts as dead {} s after its last sign of life",
                self.process.number,
                self.process.host,
                (Duration::from_secs(self.lease_seconds) + MARGIN).as_secs()
            )),
            Seen::Lives | Seen::Ended => Holder::Other(format!("process {} on this machine", self.process.number)),
        }
    }

    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("plain data").into()
    }
}

/// What a seal says.
#[derive(Serialize, Deserialize)]
struct Seal {
    format: u32,
    /// Names of files and tags.
    counts: Vec<(String, String)>,
}

/// A directory that this process owns.
pub(crate) struct Owned {
    pub(crate) id: OwnerId,
    pub(crate) is_conditional: bool,
    claim: ClaimName,
    dir: Path,
    lease: Duration,
    /// When the last sign of life was sent of which the server has said that it has it.
    last: Mutex<Instant>,
    is_superseded: AtomicBool,
    /// How many objects it has begun.
    made: AtomicU32,
}

/// The result of an attempt to own a directory.
pub(crate) enum Attempt {
    Owned(Arc<Owned>, Contents),
    /// Somebody else owns it: who, in words.
    Held(String),
}

impl Owned {
    /// A tag for the next object: no two objects of an owner have the same.
    pub(crate) fn next_tag(&self) -> Tag {
        let revision = self.made.fetch_add(1, Ordering::Relaxed);
        Tag { epoch: self.id.epoch, revision, nonce: self.id.nonce }
    }

    /// Fails if somebody else may own the directory by now, as far as this process knows.
    pub(crate) fn check(&self) -> io::Result<()> {
        let silent = self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        if self.is_superseded.load(Ordering::Relaxed) {
            return Err(self.superseded().into());
        }
        if silent > self.lease {
            let message = format!(
                "no sign of life of this process has reached the server for {} s, so another one may write to {}; open the \
                 session again",
                silent.as_secs(),
                self.dir
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        Ok(())
    }

    fn superseded(&self) -> Failure {
        let message = format!(
            "another process has taken {} over, because this one did not seem to live; end one of them",
            self.dir
        );
        Failure::refused(io::ErrorKind::Other, message)
    }

    /// Asks the server whether this process is still the owner.
    pub(crate) async fn confirm(&self, core: &Core) -> Result<()> {
        let names = core.all(&self.dir.clone().join(OWNER)).await?;
        let claims = names.iter().filter_map(|found| ClaimName::parse(found.location.filename()?));
        let mut is_mine = false;
        for claim in claims {
            is_mine |= claim == self.claim;
            if claim.epoch > self.id.epoch {
                self.is_superseded.store(true, Ordering::Relaxed);
            }
        }
        if !is_mine || self.is_superseded.load(Ordering::Relaxed) {
            self.is_superseded.store(true, Ordering::Relaxed);
            return Err(self.superseded());
        }
        Ok(())
    }

    /// Gives signs of life for ever.
    pub(crate) async fn live(self: Arc<Self>, core: Arc<Core>) {
        loop {
            tokio::time::sleep(self.lease / SIGNS).await;
            let begun = Instant::now();
            match core.put(&self.sign(), sign_of_life()).await {
                Ok(()) => *self.last.lock().unwrap_or_else(PoisonError::into_inner) = begun,
                Err(failure) => tracing::warn!(dir = %self.dir, reason = failure.message, "no sign of life was sent"),
            }
        }
    }

    fn sign(&self) -> Path {
        self.dir.clone().join(ALIVE).join(self.id.to_string())
    }

    /// Gives the directory up. The claim stays: epochs only grow.
    pub(crate) async fn release(&self, core: &Core) {
        if let Err(failure) = core.remove(&self.sign()).await {
            let reason = failure.message;
            tracing::warn!(dir = %self.dir, reason, "the next owner has to wait until this one counts as dead");
        }
    }
}

fn sign_of_life() -> Bytes {
    Bytes::from_static(b"alive\n")
}

/// The objects of a directory.
pub(crate) async fn contents(core: &Core, dir: &Path) -> Result<Contents> {
    let mut contents = Contents::default();
    for object in core.all(dir).await? {
        if let Some(name) = object.location.prefix_match(dir) {
            let parts: Vec<_> = name.map(|part| part.as_ref().to_owned()).collect();
            contents.add(&parts.join("/"), object.size);
        }
    }
    Ok(contents)
}

/// The objects of a directory, and what counts of earlier owners: `None` if nobody has taken over
/// completely.
pub(crate) async fn look(core: &Core, dir: &Path) -> Result<(Contents, Option<Sealed>)> {
    for _ in 0..LOOKS_MAX {
        let contents = contents(core, dir).await?;
        let Some(seal) = contents.newest_seal() else { return Ok((contents, None)) };
        let path = dir.clone().join(SEAL).join(seal.to_string());
        let bytes = match core.whole(&path, BYTES_MAX).await {
            // A newer owner has removed it just now.
            Err(failure) if failure.is_missing() => continue,
            bytes => bytes?,
        };
        let damaged = || Failure::refused(io::ErrorKind::InvalidData, format!("{path} is damaged"));
        let told: Seal = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        check_format(told.format, &path)?;
        let counts = told.counts.into_iter().map(|(file, tag)| Some((file, Tag::parse(&tag)?)));
        let counts = counts.collect::<Option<_>>().ok_or_else(damaged)?;
        return Ok((contents, Some(Sealed { epoch: seal.epoch, counts })));
    }
    Err(Failure::refused(io::ErrorKind::Other, format!("{dir} changes its owner all the time; try again")))
}

/// The newest claim of a directory.
pub(crate) async fn newest_claim(core: &Core, dir: &Path, contents: &Contents) -> Result<Option<Claim>> {
    match contents.claims.last() {
        Some(name) => read_claim(core, dir, *name).await,
        None => Ok(None),
    }
}

/// A claim, if it is still there.
async fn read_claim(core: &Core, dir: &Path, name: ClaimName) -> Result<Option<Claim>> {
    let path = dir.clone().join(OWNER).join(name.to_string());
    let bytes = match core.whole(&path, BYTES_MAX).await {
        Err(failure) if failure.is_missing() => return Ok(None),
        bytes => bytes?,
    };
    let claim: Claim = serde_json::from_slice(&bytes)
        .map_err(|_| Failure::refused(io::ErrorKind::InvalidData, format!("{path} is damaged")))?;
    check_format(claim.format, &path)?;
    Ok(Some(claim))
}

fn check_format(format: u32, path: &Path) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    let message = format!("{path} has format {format}, and this Outcrop knows {FORMAT}; use a newer one");
    Err(Failure::refused(io::ErrorKind::InvalidData, message))
}

/// Tries to own a directory, and cleans up after owners that are dead.
pub(crate) async fn acquire(core: &Core, dir: &Path, lease: Duration, is_conditional: bool) -> Result<Attempt> {
    for attempt in 1.. {
        let nonce = random()?;
        let before = contents(core, dir).await?;
        let epoch = before.newest_epoch().checked_add(1).ok_or_else(|| {
            Failure::refused(io::ErrorKind::Other, format!("{dir} has had as many owners as there can be"))
        })?;
        let id = OwnerId { epoch, nonce };
        let sign = dir.clone().join(ALIVE).join(id.to_string());
        let begun = Instant::now();
        core.put(&sign, sign_of_life()).await?;
        let held = match holder(core, dir, &before, &id).await {
            Ok(None) => None,
            // Whoever does not get it leaves nothing.
            other => {
                core.remove(&sign).await?;
                other?
            }
        };
        if let Some(holder) = held {
            return Ok(Attempt::Held(holder));
        }
        let name = ClaimName { epoch, nonce: (!is_conditional).then_some(nonce) };
        let claim = Claim {
            format: FORMAT,
            epoch,
            nonce: format!("{nonce:016x}"),
            is_conditional,
            lease_seconds: lease.as_secs(),
            process: Process::own(),
        };
        let path = dir.clone().join(OWNER).join(name.to_string());
        let made = core.make(&path, claim.encode(), is_conditional).await;
        let rival = match made {
            Ok(()) => rival(core, dir, name).await?,
            Err(failure) if failure.cause == Cause::Exists => true,
            Err(failure) => {
                core.remove(&sign).await?;
                return Err(failure);
            }
        };
        if !rival {
            let last = Mutex::new(begun);
            let (is_superseded, made) = (AtomicBool::new(false), AtomicU32::new(0));
            let owned = Owned { id, is_conditional, claim: name, dir: dir.clone(), lease, last, is_superseded, made };
            let contents = match take_over(core, &owned).await {
                Ok(contents) => contents,
                Err(failure) => {
                    owned.release(core).await;
                    return Err(failure);
                }
            };
            return Ok(Attempt::Owned(Arc::new(owned), contents));
        }
        if !is_conditional {
            core.remove(&path).await?;
        }
        core.remove(&sign).await?;
        if attempt == ATTEMPTS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100 + nonce % 400)).await;
    }
    Ok(Attempt::Held("one of several processes that want it at once".to_owned()))
}

/// Whether somebody else claims this epoch, or a later one.
async fn rival(core: &Core, dir: &Path, own: ClaimName) -> Result<bool> {
    let found = core.all(&dir.clone().join(OWNER)).await?;
    let mut claims = found.iter().filter_map(|found| ClaimName::parse(found.location.filename()?));
    Ok(claims.any(|claim| claim != own && claim.epoch >= own.epoch))
}

/// Who owns the directory and lives. `own` is the sign of life of this process, by which it learns
/// what time it is on the server.
async fn holder(core: &Core, dir: &Path, before: &Contents, own: &OwnerId) -> Result<Option<String>> {
    let signs = core.all(&dir.clone().join(ALIVE)).await?;
    let time_of = |id: &OwnerId| {
        let name = id.to_string();
        signs.iter().find(|sign| sign.location.filename() == Some(&name)).map(|sign| sign.last_modified)
    };
    let now = time_of(own).ok_or_else(|| {
        let message = format!("{dir}: the server does not list what was just written, so owners cannot be told apart");
        Failure::refused(io::ErrorKind::Unsupported, message)
    })?;
    // Where the server ignores conditions, there may be one that gives way beside the owner's.
    for name in &before.claims {
        let Some(claim) = read_claim(core, dir, *name).await? else {
            // It was there just now: somebody else gives way, or takes over.
            return Ok(Some("one of several processes that want it at once".to_owned()));
        };
        let Some(last) = claim.id().and_then(|id| time_of(&id)) else { continue };
        let silent = (now - last).to_std().unwrap_or_default();
        let is_dead = match claim.process.seen() {
            Seen::Ended => true,
            Seen::Here | Seen::Lives => false,
            Seen::Unknown => silent > Duration::from_secs(claim.lease_seconds) + MARGIN,
        };
        if !is_dead {
            let Process { host, number, .. } = &claim.process;
            let silent = silent.as_secs();
            return Ok(Some(format!("process {number} on {host}, which has given a sign of life {silent} s ago")));
        }
    }
    Ok(None)
}

/// Writes down what counts of earlier owners, and removes what does not, and what they have left.
async fn take_over(core: &Core, owned: &Owned) -> Result<Contents> {
    let dir = &owned.dir;
    let (found, sealed) = look(core, dir).await?;
    let stale = found.stale(sealed.as_ref());
    let settled = found.clone().settled(sealed.as_ref());
    let counts = settled.files.iter().flat_map(|(file, tags)| tags.keys().map(|tag| (file.clone(), tag.to_string())));
    let seal = Seal { format: FORMAT, counts: counts.collect() };
    let path = dir.clone().join(SEAL).join(owned.id.to_string());
    core.put(&path, serde_json::to_vec(&seal).expect("plain data").into()).await?;
    let aborted = core.abort_uploads(dir).await?;
    if aborted > 0 {
        tracing::info!(%dir, aborted, "removed uploads that a dead process had begun");
    }
    for (file, tag) in stale {
        core.remove(&dir.clone().join(file).join(tag.to_string())).await?;
    }
    for claim in found.claims.iter().filter(|claim| claim.epoch < owned.id.epoch) {
        core.remove(&dir.clone().join(OWNER).join(claim.to_string())).await?;
    }
    for (kind, ids) in [(SEAL, &found.seals), (ALIVE, &found.alive)] {
        for id in ids.iter().filter(|id| id.epoch < owned.id.epoch) {
            core.remove(&dir.clone().join(kind).join(id.to_string())).await?;
        }
    }
    Ok(settled)
}

pub(crate) fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        _ => Err(Failure::refused(io::ErrorKind::Other, "the system has no random numbers")),
    }
}
