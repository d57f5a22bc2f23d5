//! What has no directive stays as it is, byte for byte: tried on the largest C sources that are
//! here, those of the packages that this project uses.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use outcrop_annotate::translate;

use crate::compiled::run;

/// The C sources below the directories of packages, the largest ones.
fn large_sources() -> Vec<PathBuf> {
    // What other platforms need is not here.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--format-version", "1", "--offline", "--filter-platform", &platform]);
    let metadata: serde_json::Value = serde_json::from_str(&run(&mut metadata)).unwrap();
    let mut sources = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        if ["zstd-sys", "tree-sitter", "tree-sitter-c"].contains(&package["name"].as_str().unwrap()) {
            let manifest = Path::new(package["manifest_path"].as_str().unwrap());
            collect(manifest.parent().unwrap(), &mut sources);
        }
    }
    sources
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|it| it == "c") && fs::metadata(&path).unwrap().len() > 50_000 {
            found.push(path);
        }
    }
}

const ANNOTATED: &str = "
#pragma nvcp init(array, 2)
void keep_values(double *values, int count) {
#pragma nvcp add_head(values[count])
#pragma nvcp persistent(head)
}
";

#[test]
fn large_sources_stay_as_they_are() {
    let sources = large_sources();
    assert!(sources.len() >= 5, "{sources:?}");
    for path in sources {
        let text = fs::read(&path).unwrap();
        let same = translate(&path, &text).unwrap();
        assert!(same.text == text && same.directives == 0, "{}", path.display());
        // With directives at its end, all that is before stays.
        let mut more = text.clone();
        more.extend_from_slice(ANNOTATED.as_bytes());
        let translation = translate(&path, &more).unwrap_or_else(|refusals| panic!("{}", refusals[0]));
        let start = format!("#line 1 \"{}\"\n", path.display());
        assert!(translation.text.starts_with(start.as_bytes()) && translation.directives == 3);
        assert!(translation.text[start.len()..].starts_with(&text), "{}", path.display());
        assert!(translation.text.ends_with(b"NVCP_PERSIST();\n}\n"));
    }
}
