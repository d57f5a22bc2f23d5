//! Formats numbers and tables.

use bytesize::ByteSize;
use comfy_table::{CellAlignment, Table, presets};

/// A table with these column heads. All columns except the first are for numbers.
pub(crate) fn new(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(heads);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// As in `1.5 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    ByteSize(count).display().iec().to_string()
}

/// As in `2.41 GB/s`.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second > 0.0 { format!("{:.2} GB/s", bytes_per_second / 1e9) } else { "-".to_owned() }
}

/// As in `12.3 s`.
pub(crate) fn seconds(seconds: f64) -> String {
    format!("{seconds:.2} s")
}
