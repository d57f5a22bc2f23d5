//! What to draw: lines, stacked bars or a timeline.

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// One or more panels, one above the other.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// The label of the horizontal axis.
    pub x_label: String,
    /// The label of the vertical axis.
    pub y_label: String,
    /// Whether the vertical axis is logarithmic.
    pub is_log: bool,
    /// What is drawn in it.
    pub content: Content,
}

/// What is drawn in a panel.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// One line per series, over equally spaced ticks.
    Lines {
        /// Labels of the ticks.
        ticks: Vec<String>,
        /// The lines.
        series: Vec<Series>,
    },
    /// One bar per tick, of stacked parts.
    Bars {
        /// Names of the bars.
        ticks: Vec<String>,
        /// The parts. Each has a value for every bar.
        parts: Vec<Series>,
    },
    /// One row per name, with coloured spans.
    Timeline {
        /// Names of the rows, from the top.
        rows: Vec<String>,
        /// Names of the colours. Those without a name are not in the legend.
        kinds: Vec<String>,
        /// Row, kind, start and end.
        spans: Vec<(usize, usize, f64, f64)>,
    },
}

/// Numbers with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name.
    pub name: String,
    /// A number for every tick.
    pub values: Vec<f64>,
    /// Whether this is the series that the figure is about.
    pub is_ours: bool,
}

impl Series {
    /// A series to compare with.
    pub fn new(name: &str, values: Vec<f64>) -> Self {
        Self { name: name.to_owned(), values, is_ours: false }
    }

    /// The series that the figure is about.
    pub fn ours(name: &str, values: Vec<f64>) -> Self {
        Self { name: name.to_owned(), values, is_ours: true }
    }
}
