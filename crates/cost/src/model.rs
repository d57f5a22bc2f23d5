//! The model of a machine: what persisting takes there. A small file.

use std::{
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use outcrop_error::{ErrorKind, OfKind};

use crate::{Features, Growth, ModelTree, Samples, features::ATTRIBUTES, linear::Linear, tree::Node};

/// What a file says that it is.
const FORMAT: &str = "outcrop model";

/// The version of the file. Another one is refused.
const VERSION: u32 = 1;

/// More nodes are none of ours either.
const NODES_MAX: usize = 1 << 16;

/// Predictions are between these: no persist is faster, and nobody waits for longer.
const SECONDS: [f64; 2] = [1e-6, 1e6];

/// What one call took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// What it persisted.
    pub features: Features,
    /// How long it took.
    pub seconds: f64,
}

/// A model file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; train another one with `outcrop model train`")]
pub struct Error {
    problem: String,
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Usage
    }
}

/// Predicts how long persisting takes on one machine. Clones share it.
///
/// ```
/// use outcrop_cost::{Features, Kind, Model};
/// let features = Features {
///     kind: Kind::Array { dimensions: 1 },
///     structures: 1, bytes: 64 << 20, element_bytes: 8, blocks: 2048, levels: 2,
///     changed_blocks: 20, changed_bytes: 20 << 15, changed_from_file: 0, memory_blocks: 2048,
/// };
/// let model = Model::built_in();
/// let more = Features { changed_blocks: 2048, changed_bytes: 64 << 20, ..features };
/// assert!(model.seconds(&more) > model.seconds(&features));
/// // A file keeps it.
/// assert_eq!(Model::from_text(&model.to_text())?, model);
/// # Ok::<(), outcrop_cost::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Of the logarithm of the seconds, so that errors count as ratios.
    tree: Arc<ModelTree>,
}

impl Model {
    /// A file with more bytes is no model: a tree of a thousand leaves has some 200 KiB.
    pub const BYTES_MAX: usize = 4 << 20;

    /// The model of the machine on which Outcrop was developed, with a file on ext4. What calls
    /// really take corrects it soon.
    pub fn built_in() -> Self {
        static BUILT_IN: LazyLock<Model> =
            LazyLock::new(|| Model::from_text(include_str!("built_in.model")).expect("a test reads it"));
        BUILT_IN.clone()
    }

    /// Learns from what calls took.
    pub fn train(measured: &[Measured]) -> Self {
        Self { tree: Arc::new(ModelTree::train(&Self::samples(measured), Growth::default())) }
    }

    /// What was measured, as a model learns it: attributes, and the logarithm of the seconds.
    pub fn samples(measured: &[Measured]) -> Samples {
        let mut samples = Samples::new(&ATTRIBUTES);
        for it in measured {
            samples.push(&it.features.values(), it.seconds.clamp(SECONDS[0], SECONDS[1]).ln());
        }
        samples
    }

    /// How long it takes to persist what has these features.
    pub fn seconds(&self, features: &Features) -> f64 {
        let logarithm = self.tree.predict(&features.values());
        if logarithm.is_nan() { SECONDS[0] } else { logarithm.exp().clamp(SECONDS[0], SECONDS[1]) }
    }

    /// How far it is off: the sum of its errors, divided by that of saying always the mean. The
    /// calls should be others than those that it learned from.
    pub fn relative_absolute_error(&self, measured: &[Measured]) -> f64 {
        let mean = measured.iter().map(|it| it.seconds).sum::<f64>() / measured.len().max(1) as f64;
        let of_model = measured.iter().map(|it| (self.seconds(&it.features) - it.seconds).abs()).sum::<f64>();
        of_model / measured.iter().map(|it| (mean - it.seconds).abs()).sum::<f64>()
    }

    /// How many linear models it has.
    pub fn leaves(&self) -> usize {
        self.tree.leaves()
    }

    /// The content of a file: a line that says what it is, one with the names of the attributes,
    /// and one for each node.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FORMAT} {VERSION}\nattributes {}\n", ATTRIBUTES.join(" "));
        for node in &self.tree.nodes {
            // Rust writes as many digits as it takes to read the same number again.
            let _ = match node {
                Node::Split { attribute, threshold, low, high } => {
                    writeln!(text, "split {attribute} {threshold} {low} {high}")
                }
                Node::Leaf(linear) => {
                    let terms = linear.terms.iter().map(|(attribute, by)| format!(" {attribute} {by}"));
                    writeln!(text, "leaf {}{}", linear.constant, terms.collect::<String>())
                }
            };
        }
        text
    }

    /// The model of a file. Anything that is not one is an error.
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error { problem };
        if text.len() > Self::BYTES_MAX {
            return Err(wrong(format!("a model has at most {} bytes", Self::BYTES_MAX)));
        }
        let mut lines = text.lines();
        let version = lines.next().and_then(|line| line.strip_prefix(FORMAT)).map(str::trim);
        match version {
            None => return Err(wrong(format!("this is not a model: it does not begin with {FORMAT:?}"))),
            Some(version) if version.parse() != Ok(VERSION) => {
                return Err(wrong(format!("the model has version {version:?}, and this program reads {VERSION}")));
            }
            Some(_) => {}
        }
        let attributes = lines.next().and_then(|line| line.strip_prefix("attributes ")).unwrap_or_default();
        if !attributes.split(' ').eq(ATTRIBUTES) {
            return Err(wrong(format!("the model was trained with other attributes: {attributes:?}")));
        }
        let damaged = |nth: usize| wrong(format!("the model is damaged: line {} is wrong", nth + 3));
        let nodes = lines.enumerate().map(|(nth, line)| node(line).ok_or_else(|| damaged(nth)));
        let nodes = nodes.take(NODES_MAX + 1).collect::<Result<Vec<_>, _>>()?;
        check(&nodes).map_err(wrong)?;
        if !text.ends_with('\n') {
            return Err(wrong("the model is damaged: its end is missing".to_owned()));
        }
        Ok(Self { tree: Arc::new(ModelTree { nodes }) })
    }
}

/// The node of a line.
fn node(line: &str) -> Option<Node> {
    let mut words = line.split(' ');
    let node = match words.next()? {
        "split" => Node::Split {
            attribute: attribute(words.next()?)?,
            threshold: number(words.next()?)?,
            low: words.next()?.parse().ok()?,
            high: words.next()?.parse().ok()?,
        },
        "leaf" => {
            let constant = number(words.next()?)?;
            let mut terms: Vec<(usize, f64)> = Vec::new();
            while let Some(word) = words.next() {
                let term = (attribute(word)?, number(words.next()?)?);
                if terms.last().is_some_and(|last| last.0 >= term.0) {
                    return None;
                }
                terms.push(term);
            }
            Node::Leaf(Linear { constant, terms })
        }
        _ => return None,
    };
    words.next().is_none().then_some(node)
}

fn attribute(word: &str) -> Option<usize> {
    word.parse().ok().filter(|attribute| *attribute < ATTRIBUTES.len())
}

fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

/// That nodes are a tree: all are reached, each once, from those before them.
fn check(nodes: &[Node]) -> Result<(), String> {
    let count = nodes.len();
    if !(1..=NODES_MAX).contains(&count) {
        return Err(format!("the model is damaged: it has {count} nodes"));
    }
    let mut is_reached = vec![false; count];
    is_reached[0] = true;
    for (at, node) in nodes.iter().enumerate() {
        let is_right = match node {
            Node::Leaf(_) => true,
            Node::Split { low, high, .. } => {
                [*low, *high].into_iter().all(|child| child < count && !std::mem::replace(&mut is_reached[child], true))
            }
        };
        if !is_right || !is_reached[at] {
            return Err(format!("the model is damaged: node {at} is not part of a tree"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::tests::array;

    /// A machine that takes 200 microseconds, and a millisecond for each MiB.
    fn measured() -> Vec<Measured> {
        (0..300)
            .map(|nth| {
                let features = array(nth * nth % 2048);
                Measured { features, seconds: 200e-6 + features.changed_bytes as f64 / (1 << 20) as f64 * 1e-3 }
            })
            .collect()
    }

    #[test]
    fn a_machine_is_learned_from_microseconds_to_seconds() {
        let model = Model::train(&measured());
        assert!(model.relative_absolute_error(&measured()) < 0.05, "{}", model.relative_absolute_error(&measured()));
        for changed in [0, 3, 50, 500, 2000] {
            let real = 200e-6 + array(changed).changed_bytes as f64 / (1 << 20) as f64 * 1e-3;
            let ratio = model.seconds(&array(changed)) / real;
            assert!((0.7..1.4).contains(&ratio), "{changed} blocks: {ratio}");
        }
    }

    #[test]
    fn the_built_in_model_can_be_read_and_says_possible_times() {
        let model = Model::built_in();
        for changed in [0, 1, 100, 2048] {
            assert!((1e-5..10.0).contains(&model.seconds(&array(changed))), "{}", model.seconds(&array(changed)));
        }
    }

    #[test]
    fn a_file_gives_the_same_model_back() {
        let model = Model::train(&measured());
        let text = model.to_text();
        let again = Model::from_text(&text).unwrap();
        assert_eq!(again, model, "to the last digit");
        assert!(text.len() < 100_000, "{}", text.len());
    }

    #[test]
    fn files_that_were_made_to_do_harm_are_errors() {
        let refused = |text: &str| Model::from_text(text).unwrap_err().to_string();
        let file = |nodes: &str| format!("outcrop model 1\nattributes {}\n{nodes}\n", ATTRIBUTES.join(" "));
        assert!(Model::from_text(&file("leaf 1.5")).is_ok());
        assert!(Model::from_text(&file("split 0 1.0 1 2\nleaf 1\nleaf -2 3 4.5")).is_ok());
        let many = vec!["leaf 1"; NODES_MAX + 1].join("\n");
        for nodes in [
            // A circle, a node twice, one that nobody refers to, none, and such as are not there.
            "split 0 1.0 0 0",
            "split 0 1.0 1 1\nleaf 1",
            "leaf 1\nleaf 1",
            "",
            "split 0 1.0 1 9\nleaf 1\nleaf 1",
            "split 14 1.0 1 2\nleaf 1\nleaf 1",
            // What is no number, too few and too many words, attributes twice.
            "split 0 NaN 1 2\nleaf 1\nleaf 1",
            "split 0 1e999 1 2\nleaf 1\nleaf 1",
            "split 0 1.0 1 2 3\nleaf 1\nleaf 1",
            "split 0 1.0 1",
            "leaf inf",
            "leaf",
            "leaf 1 2",
            "leaf 1 99 1.0",
            "leaf 1 1 1.0 1 1.0",
            "stem 1",
            &many,
        ] {
            let why = refused(&file(nodes));
            assert!(why.contains("damaged"), "{nodes:.60}: {why}");
        }
        assert!(refused("").contains("not a model"));
        assert!(refused("PK\u{3}\u{4}").contains("not a model"));
        assert!(refused(&file("leaf 1").replace("model 1", "model 2")).contains("version \"2\""));
        assert!(refused(&file("leaf 1").replace("depth ", "")).contains("other attributes"));
        assert!(refused(&" ".repeat(Model::BYTES_MAX + 1)).contains("at most"));
        // Numbers that overflow on the way give a prediction, and no more than a million seconds.
        let seconds = Model::from_text(&file("leaf 1e308 0 1e308 1 -1e308")).unwrap().seconds(&array(1));
        assert!((SECONDS[0]..=SECONDS[1]).contains(&seconds), "{seconds}");
    }

    #[test]
    fn every_cut_or_changed_file_is_read_or_refused() {
        let text = Model::train(&measured()[..40]).to_text();
        for at in 0..text.len() {
            assert!(Model::from_text(&text[..at]).is_err(), "cut at {at}");
            for with in ["9", "-", " ", "e", "\n"] {
                let changed = format!("{}{with}{}", &text[..at], &text[at + 1..]);
                if let Ok(model) = Model::from_text(&changed) {
                    assert!(model.seconds(&array(9)).is_finite());
                }
            }
        }
    }
}
