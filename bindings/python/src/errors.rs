//! Errors of the core as Python exceptions.

use outcrop::{Error, ErrorKind, bindings::no_key};
use pyo3::{exceptions::PyOverflowError, prelude::*, types::PyType};

/// The exception for an error, by its kind.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    raise_kind(py, error.kind(), format!("{error:#}"))
}

/// The exception of a kind, with this message. The classes are in `outcrop.errors`, each named as
/// its kind is.
pub(crate) fn raise_kind(py: Python<'_>, kind: ErrorKind, message: String) -> PyErr {
    let class = py.import("outcrop.errors").and_then(|errors| errors.getattr(kind.python_name()));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => error,
    }
}

/// The exception for a call that makes no sense.
pub(crate) fn usage(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raise_kind(py, ErrorKind::Usage, message.into())
}

/// A number from 0 upwards that names a snapshot or a version.
pub(crate) fn number(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract().map_err(|error: PyErr| {
        let py = value.py();
        if error.is_instance_of::<PyOverflowError>(py) { raise(py, &no_key(value.to_string())) } else { error }
    })
}
