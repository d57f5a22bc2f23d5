//! Errors of the core as Python exceptions.

use std::path::PathBuf;

use outcrop::{Error, ErrorKind, bindings::no_key};
use pyo3::{exceptions::PyOverflowError, prelude::*, types::PyType};

/// The exception for an error, by its kind. What the system has said is kept.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let message = format!("{error:#}");
    let Some(errno) = error.os_error() else { return raise_kind(py, error.kind(), message) };
    let of_system = || {
        let errors = py.import("outcrop.errors")?;
        let class = errors.getattr(error.kind().python_name())?;
        errors.call_method1("of_system", (class, errno, message))
    };
    of_system().map_or_else(|error| error, PyErr::from_value)
}

/// The exception of a kind, with this message. The classes are in `outcrop.errors`, each named as
/// its kind is.
pub(crate) fn raise_kind(py: Python<'_>, kind: ErrorKind, message: String) -> PyErr {
    raise_class(py, kind.python_name(), message)
}

fn raise_class(py: Python<'_>, name: &str, message: String) -> PyErr {
    let class = py.import("outcrop.errors").and_then(|errors| errors.getattr(name));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => error,
    }
}

/// The exception for a call that makes no sense.
pub(crate) fn usage(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raise_kind(py, ErrorKind::Usage, message.into())
}

/// The exception for an argument of a type that makes no sense.
pub(crate) fn wrong_type(py: Python<'_>, message: String) -> PyErr {
    raise_class(py, "WrongType", message)
}

/// A number from 0 upwards that names a snapshot or a version.
pub(crate) fn number(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(value, || no_key(value.to_string()).to_string())
}

/// A number from 0 upwards that is called `what`.
pub(crate) fn size(what: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    whole(value, || format!("{what} is {value}, and must be a whole number from 0 upwards"))
}

fn whole<'py, T: FromPyObjectOwned<'py, Error = PyErr>>(
    value: &Bound<'py, PyAny>,
    refusal: impl FnOnce() -> String,
) -> PyResult<T> {
    value.extract().map_err(|error: PyErr| {
        let py = value.py();
        match error.is_instance_of::<PyOverflowError>(py) {
            true => usage(py, refusal()),
            false => wrong_type(py, format!("{} is a {}, and must be a whole number", shown(value), kind(value))),
        }
    })
}

/// A path.
pub(crate) fn path(value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    value.extract().map_err(|_: PyErr| wrong_type(value.py(), format!("{} is no path", shown(value))))
}

/// The name of a session.
pub(crate) fn name(value: &Bound<'_, PyAny>) -> PyResult<String> {
    value.extract().map_err(|_: PyErr| {
        let message = format!("{} is a {}, and must be the name of a session", shown(value), kind(value));
        wrong_type(value.py(), message)
    })
}

pub(crate) fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| kind(value), |shown| shown.to_string())
}

fn kind(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}
