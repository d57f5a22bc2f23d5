//! Velocity models from files: raw 32-bit floats and NumPy's `.npy`.
//!
//! A file is foreign input. Its header is believed only as far as the length of the file bears it
//! out, so that no header can cause a panic or an allocation beyond a few times the size of the
//! file.

use crate::error::{Error, Result};
use crate::model::Grid;
use std::fs;
use std::path::Path;

/// What a `.npy` file starts with.
const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads velocities, x slowest and depth fastest, with the points of their grid. `points` must be
/// given for a raw file; for `.npy` it is checked against the shape if it is given.
pub(crate) fn read(path: &Path, points: Option<[usize; 3]>) -> Result<([usize; 3], Vec<f32>)> {
    let bytes = fs::read(path).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
    let parsed = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy")) {
        parse_npy(&bytes).and_then(|(found, velocity)| match points {
            Some(expected) if expected != found => {
                Err(format!("has the shape {}, but points says {}", show(found), show(expected)))
            }
            _ => Ok((found, velocity)),
        })
    } else {
        parse_raw(&bytes, points)
    };
    parsed.map_err(|problem| Error::ModelFile { path: path.to_owned(), problem })
}

/// Writes values, x slowest and depth fastest, as a NumPy array of shape (x, z) or (x, y, z).
pub fn write_npy(path: &Path, grid: &Grid, values: &[f32]) -> Result<()> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}", show(grid.points));
    // NumPy wants the values to start at a multiple of 64 bytes, and the header to end with a new
    // line.
    let padded = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - MAGIC.len() - 4;
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((padded as u16).to_le_bytes());
    bytes.extend(format!("{header:<width$}\n", width = padded - 1).bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    fs::write(path, bytes).map_err(|source| Error::File { action: "write", path: path.to_owned(), source })
}

fn show([x, y, z]: [usize; 3]) -> String {
    if y == 1 { format!("({x}, {z})") } else { format!("({x}, {y}, {z})") }
}

type Parsed = std::result::Result<([usize; 3], Vec<f32>), String>;

fn parse_raw(bytes: &[u8], points: Option<[usize; 3]>) -> Parsed {
    let points = points.ok_or("a raw file does not know its size: set points to [x, z] or [x, y, z]")?;
    let expected = byte_count(&points, 4)?;
    if bytes.len() != expected {
        return Err(format!("has {} bytes, but {} points of 4 bytes are {expected} bytes", bytes.len(), show(points)));
    }
    Ok((points, bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()))
}

/// The bytes of an array, or an error if no file could have that many.
fn byte_count(shape: &[usize], item: usize) -> std::result::Result<usize, String> {
    shape
        .iter()
        .try_fold(item, |product, &n| product.checked_mul(n))
        .ok_or_else(|| format!("the shape {shape:?} has more elements than memory has addresses"))
}

fn parse_npy(bytes: &[u8]) -> Parsed {
    let (header, body) = split_npy(bytes)?;
    let shape = shape_of(header)?;
    let points = match *shape.as_slice() {
        [x, z] => [x, 1, z],
        [x, y, z] => [x, y, z],
        _ => return Err(format!("has the shape {shape:?}; a model has two axes (x, z) or three (x, y, z)")),
    };
    if points.contains(&0) {
        return Err(format!("has the shape {shape:?}, which holds no point"));
    }
    let descr = quoted(value_of(header, "descr")?)?;
    let item = match descr {
        "<f4" | ">f4" => 4,
        "<f8" | ">f8" => 8,
        other => return Err(format!("has elements of type {other:?}; save it as float32 or float64")),
    };
    let expected = byte_count(&shape, item)?;
    if body.len() != expected {
        return Err(format!(
            "has {} bytes after its header, but the shape {} of {item}-byte elements needs {expected}; was it cut short?",
            body.len(),
            show(points)
        ));
    }
    let values: Vec<f32> = match descr {
        "<f4" => body.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        ">f4" => body.as_chunks().0.iter().map(|&b| f32::from_be_bytes(b)).collect(),
        "<f8" => body.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect(),
        _ => body.as_chunks().0.iter().map(|&b| f64::from_be_bytes(b) as f32).collect(),
    };
    let fortran = match value_of(header, "fortran_order")? {
        v if v.starts_with("True") => true,
        v if v.starts_with("False") => false,
        _ => return Err("its header says neither True nor False for fortran_order".to_owned()),
    };
    Ok((points, if fortran { from_fortran(points, &values) } else { values }))
}

/// Splits a `.npy` file into its header text and its elements.
fn split_npy(bytes: &[u8]) -> std::result::Result<(&str, &[u8]), String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("is not a .npy file: it does not start with \\x93NUMPY")?;
    let cut = || "ends within its header; was it cut short?".to_owned();
    let (&[major, _minor], rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
    let (length, rest) = match major {
        1 => {
            let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            (usize::try_from(u32::from_le_bytes(*length)).map_err(|e| e.to_string())?, rest)
        }
        other => return Err(format!("is a .npy file of version {other}; versions 1 to 3 are known")),
    };
    let (header, body) = rest.split_at_checked(length).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text".to_owned())?;
    Ok((header, body))
}

/// What follows `'key':` in the header, which is the text of a Python dictionary.
fn value_of<'a>(header: &'a str, key: &str) -> std::result::Result<&'a str, String> {
    let missing = || format!("its header has no {key}");
    let after =
        ["'", "\""].iter().find_map(|quote| header.split_once(&format!("{quote}{key}{quote}"))).ok_or_else(missing)?.1;
    Ok(after.trim_start().strip_prefix(':').ok_or_else(missing)?.trim_start())
}

fn quoted(value: &str) -> std::result::Result<&str, String> {
    let quote = value.chars().next().filter(|c| ['\'', '"'].contains(c));
    quote
        .and_then(|quote| value[1..].split_once(quote))
        .map(|(inner, _)| inner)
        .ok_or_else(|| "its elements have several fields; save one array of float32 or float64".to_owned())
}

fn shape_of(header: &str) -> std::result::Result<Vec<usize>, String> {
    let odd = || "its header has a shape that is not a list of numbers".to_owned();
    let (inner, _) = value_of(header, "shape")?.strip_prefix('(').and_then(|v| v.split_once(')')).ok_or_else(odd)?;
    inner
        .split(',')
        .map(str::trim)
        .filter(|number| !number.is_empty())
        // Python 2 wrote long numbers with an L.
        .map(|number| number.trim_end_matches('L').parse().map_err(|_| odd()))
        .collect()
}

/// Reorders an array whose first axis varies fastest into one whose last axis does.
fn from_fortran([nx, ny, nz]: [usize; 3], values: &[f32]) -> Vec<f32> {
    let mut ordered = Vec::with_capacity(values.len());
    for x in 0..nx {
        for y in 0..ny {
            ordered.extend((0..nz).map(|z| values[(z * ny + y) * nx + x]));
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A `.npy` file as NumPy writes it.
    fn npy(version: u8, dictionary: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        let header = format!("{dictionary}\n");
        if version == 1 {
            bytes.extend((header.len() as u16).to_le_bytes());
        } else {
            bytes.extend((header.len() as u32).to_le_bytes());
        }
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        bytes
    }

    fn dictionary(descr: &str, fortran: bool, shape: &str) -> String {
        let fortran = if fortran { "True" } else { "False" };
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}")
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn both_orders_types_and_versions() {
        let values: Vec<f32> = (0..24).map(|i| 1500.0 + i as f32).collect();
        let little = npy(1, &dictionary("<f4", false, "(2, 3, 4)"), &floats(&values));
        assert_eq!(parse_npy(&little).unwrap(), ([2, 3, 4], values.clone()));

        let doubles: Vec<u8> = values.iter().flat_map(|&v| f64::from(v).to_be_bytes()).collect();
        let big = npy(2, &dictionary(">f8", false, "(6L, 4L)"), &doubles);
        assert_eq!(parse_npy(&big).unwrap(), ([6, 1, 4], values.clone()));

        // Element (x, y, z) of a Fortran array of this shape lies at x + 2 (y + 3 z).
        let mut fortran = vec![0.0; 24];
        for x in 0..2 {
            for y in 0..3 {
                for z in 0..4 {
                    fortran[x + 2 * (y + 3 * z)] = values[(x * 3 + y) * 4 + z];
                }
            }
        }
        let file = npy(1, &dictionary("<f4", true, "(2, 3, 4)"), &floats(&fortran));
        assert_eq!(parse_npy(&file).unwrap(), ([2, 3, 4], values));
    }

    #[test]
    fn hostile_headers_are_refused_with_a_reason() {
        let body = floats(&[1500.0; 6]);
        let huge = "(4611686018427387904, 4611686018427387904)";
        let cases = [
            (b"PK\x03\x04".to_vec(), "not a .npy file"),
            (MAGIC.to_vec(), "cut short"),
            (npy(9, "", &[]), "version 9"),
            (npy(1, &dictionary("<f4", false, "(2, 3)"), &body[..20]), "cut short"),
            (npy(1, &dictionary("<f4", false, "(2, 4)"), &body), "needs 32"),
            (npy(1, &dictionary("<f4", false, huge), &body), "more elements"),
            (npy(1, &dictionary("<f4", false, "(1000000000, 1000000)"), &body), "needs 4000000000000000"),
            (npy(1, &dictionary("<i4", false, "(2, 3)"), &body), "\"<i4\""),
            (npy(1, &dictionary("<f4", false, "(6,)"), &body), "two axes"),
            (npy(1, &dictionary("<f4", false, "(0, 3)"), &[]), "no point"),
            (npy(1, &dictionary("<f4", false, "(-2, 3)"), &body), "not a list of numbers"),
            (npy(1, "{'descr': [('a', '<f4')], 'shape': (2, 3)}", &body), "several fields"),
            (npy(1, "{'descr': '<f4', 'shape': (2, 3)}", &body), "no fortran_order"),
            (npy(1, "", &body), "no shape"),
        ];
        for (bytes, expected) in cases {
            let problem = parse_npy(&bytes).unwrap_err();
            assert!(problem.contains(expected), "{problem:?} should mention {expected:?}");
        }
        let mut long = MAGIC.to_vec();
        long.extend([2, 0, 0xff, 0xff, 0xff, 0xff, b'{']);
        assert!(parse_npy(&long).unwrap_err().contains("cut short"));
    }

    #[test]
    fn raw_files_must_have_the_right_size() {
        assert_eq!(parse_raw(&floats(&[1.0; 6]), Some([2, 1, 3])).unwrap().1, [1.0; 6]);
        assert!(parse_raw(&[0; 23], Some([2, 1, 3])).unwrap_err().contains("23 bytes"));
        assert!(parse_raw(&[0; 24], None).unwrap_err().contains("set points"));
    }

    proptest! {
        #[test]
        fn no_header_panics(major in 0_u8..4, text in "[{}()',:0-9a-zL <>]{0,60}", tail in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_npy(&npy(major, &text, &tail));
            let _ = parse_npy(&npy(major, &dictionary("<f4", true, &text), &tail));
            let _ = parse_npy(&npy(major, &dictionary(&text, false, "(1, 2)"), &tail));
        }
    }
}
