//! Whether a server keeps conditions. What it says of itself is not asked: it is tried.

use bytes::Bytes;
use object_store::{PutMode, PutPayload, path::Path};

use crate::{
    failure::Cause,
    owner::random,
    remote::{Core, Result},
};

/// Makes an object twice, under the condition that it does not exist. Whether the second attempt
/// failed, and changed nothing. The object has a name of its own, and is removed.
pub(crate) async fn keeps_conditions(core: &Core, prefix: &Path) -> Result<bool> {
    let path = prefix.clone().join(format!("probe-{:016x}", random()?));
    let result = try_twice(core, &path).await;
    let removed = core.remove(&path).await;
    let keeps = result?;
    removed?;
    Ok(keeps)
}

async fn try_twice(core: &Core, path: &Path) -> Result<bool> {
    let put = |text: &'static str| {
        let payload = PutPayload::from_static(text.as_bytes());
        core.ask(core.store.put_opts(path, payload, PutMode::Create.into()))
    };
    match put("first").await {
        Ok(_) => {}
        // The server does not know the condition at all.
        Err(failure) if matches!(failure.cause, Cause::Refused(std::io::ErrorKind::Unsupported)) => return Ok(false),
        Err(failure) if failure.cause == Cause::Exists => return Ok(false),
        Err(failure) => return Err(failure),
    }
    match put("second").await {
        Ok(_) => Ok(false),
        Err(failure) if failure.cause == Cause::Exists => {
            Ok(core.whole(path, 100).await? == Bytes::from_static(b"first"))
        }
        Err(failure) => Err(failure),
    }
}
