//! Variables of the environment that look like settings, and are none.

use std::{env, sync::Once};

use crate::{NodeSettings, Settings, StoreSettings, TapeSettings, reference::OTHER_VARIABLES};

/// What the variables of Outcrop begin with.
const PREFIX: &str = "OUTCROP_";

/// Of these names of variables, those that are probably meant to be others, each with that one.
/// What resembles none may belong to somebody else.
pub fn misspelt(names: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    let tape = TapeSettings::TABLE.iter().map(|setting| setting.variable());
    let store = StoreSettings::TABLE.iter().map(|setting| setting.variable());
    let node = NodeSettings::TABLE.iter().map(|setting| setting.variable());
    let others = OTHER_VARIABLES.iter().map(|(name, _)| (*name).to_owned());
    let known: Vec<String> = tape.chain(store).chain(node).chain(others).collect();
    let of_outcrop = names.into_iter().filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    let meant = |name: String| {
        // One mistake, or two in a long name.
        let mistakes = |known: &&String| strsim::osa_distance(&name.to_uppercase(), known);
        let nearest = known.iter().min_by_key(mistakes)?;
        let mistakes_max = (nearest.len() - PREFIX.len()).div_ceil(8).max(1);
        (mistakes(&nearest) <= mistakes_max).then(|| (name.clone(), nearest.clone()))
    };
    of_outcrop.filter_map(meant).collect()
}

/// Warns of variables of this process that are probably misspelt, once.
pub(crate) fn warn() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for (name, meant) in misspelt(names) {
            tracing::warn!("the variable {name} is not known and has no effect; did you mean {meant}?");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_resembles_a_variable_is_misspelt() {
        let find = |name: &str| misspelt([name.to_owned()]).pop().map(|(_, meant)| meant);
        for (name, meant) in [
            ("OUTCROP_HOSTT", "OUTCROP_HOST"),
            ("OUTCROP_DRI", "OUTCROP_DIR"),
            ("OUTCROP_KEEPLAST", "OUTCROP_KEEP_LAST"),
            ("OUTCROP_COMPRESION", "OUTCROP_COMPRESSION"),
            ("OUTCROP_Host", "OUTCROP_HOST"),
            ("OUTCROP_LOGS", "OUTCROP_LOG"),
            ("OUTCROP_NODE_MEMRY", "OUTCROP_NODE_MEMORY"),
        ] {
            assert_eq!(find(name).as_deref(), Some(meant), "{name}");
        }
        let others = ["OUTCROP_HOST", "OUTCROP_LOG", "OUTCROP_NODE_OPTIONS", "HOSTT", "PATH", "OUTCROP_"];
        let of_tests = ["SOAK", "TEST_ALL", "PYTHON", "NVRTC", "GUEST_KERNEL", "CRASH_SEED", "KILL_SEED", "MODEL_SEED"];
        let of_tests = of_tests.map(|name| format!("{PREFIX}{name}"));
        for name in others.into_iter().chain(of_tests.iter().map(String::as_str)) {
            assert_eq!(find(name), None, "{name}");
        }
    }
}
