//! NumPy arrays as bytes, and bytes as NumPy arrays.

use std::{ffi::c_int, ptr, slice};

use numpy::{
    PY_ARRAY_API, PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods,
    npyffi::{
        self, _PyArray_GET_ITEM_DATA, NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_F_CONTIGUOUS, NPY_ARRAY_WRITEABLE, NpyTypes,
    },
};
use outcrop::Element;
use pyo3::{intern, prelude::*, sync::PyOnceLock, types::PyList};

use crate::errors::usage;

/// How an array lies in a region of a snapshot: what is needed to make it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// Which of the [`Dtypes`].
    pub(crate) dtype: usize,
    pub(crate) is_fortran: bool,
    pub(crate) shape: Vec<usize>,
    /// The program's name for it; empty where it has none.
    pub(crate) name: String,
}

impl Label {
    /// As the name of a region. So a snapshot and what is known of its arrays are one, whichever thread does what with it.
    pub(crate) fn encode(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("{}{}", self.dtype, if self.is_fortran { 'F' } else { 'C' });
        for (index, extent) in self.shape.iter().enumerate() {
            // Writing to a text does not fail.
            let _ = write!(text, "{}{extent}", if index == 0 { "" } else { "," });
        }
        text.push(':');
        text.push_str(&self.name);
        text
    }

    /// From the name of a region.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let (layout, name) = text.split_once(':')?;
        let at = layout.find(['C', 'F'])?;
        let extents = layout[at + 1..].split(',').filter(|extent| !extent.is_empty());
        Some(Self {
            dtype: layout[..at].parse().ok()?,
            is_fortran: layout[at..].starts_with('F'),
            shape: extents.map(|extent| extent.parse().ok()).collect::<Option<_>>()?,
            name: name.to_owned(),
        })
    }
}

/// The dtypes that a tape has met. NumPy's own objects are kept, because some have no name that says all: structures, units of time.
pub(crate) struct Dtypes(Py<PyList>);

impl Dtypes {
    pub(crate) fn new(py: Python<'_>) -> Self {
        Self(PyList::empty(py).unbind())
    }

    /// The number of a dtype.
    pub(crate) fn number(&self, dtype: &Bound<'_, PyArrayDescr>) -> PyResult<usize> {
        if dtype.itemsize() == 0 {
            // NumPy takes it for a dtype whose length it may choose, and would make the array longer than the region.
            return Err(usage(
                dtype.py(),
                format!("elements of the dtype {dtype} have no length; choose one with a length"),
            ));
        }
        let known = self.0.bind(dtype.py());
        for (index, other) in known.iter().enumerate() {
            // Most programs use one or two, and NumPy has one object for each plain one.
            if other.is(dtype) || other.eq(dtype)? {
                return Ok(index);
            }
        }
        known.append(dtype)?;
        Ok(known.len() - 1)
    }

    /// The dtype of a number.
    pub(crate) fn dtype<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyArrayDescr>> {
        Ok(self.0.bind(py).get_item(number)?.cast_into()?)
    }
}

/// An array whose bytes lie in one piece. It keeps them alive.
pub(crate) struct Flat<'py> {
    array: Bound<'py, PyUntypedArray>,
}

impl<'py> Flat<'py> {
    /// An object as such an array: itself if it is one, else what `outcrop._arrays.flat` makes of it.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        static FLAT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if let Ok(array) = object.cast_exact::<PyUntypedArray>()
            && array.is_contiguous()
            && !array.dtype().has_object()
        {
            return Ok(Self { array: array.clone() });
        }
        let flat = FLAT.import(object.py(), "outcrop._arrays", "flat")?;
        Ok(Self { array: flat.call1((object,))?.cast_into()? })
    }

    /// An array that can be written to in place.
    pub(crate) fn of_mut(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let array = object.cast::<PyUntypedArray>()?;
        let is_writable = object.getattr(intern!(py, "flags"))?.getattr(intern!(py, "writeable"))?.is_truthy()?;
        if !is_writable || !array.is_contiguous() || array.dtype().has_object() {
            return Err(usage(py, "an array to be filled must be writable, contiguous, and without Python objects"));
        }
        Ok(Self { array: array.clone() })
    }

    pub(crate) fn array(&self) -> &Bound<'py, PyUntypedArray> {
        &self.array
    }

    fn is_fortran(&self) -> bool {
        !self.array.is_c_contiguous()
    }

    /// How it lies in memory.
    pub(crate) fn label(&self, dtypes: &Dtypes, name: &str) -> PyResult<Label> {
        let dtype = dtypes.number(&self.array.dtype())?;
        Ok(Label { dtype, is_fortran: self.is_fortran(), shape: self.array.shape().to_vec(), name: name.to_owned() })
    }

    /// Its bytes. As everywhere in NumPy, a program that writes to them on another thread meanwhile gets what it deserves: some old and
    /// some new ones.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (start, len) = self.place();
        // SAFETY: NumPy's array is contiguous and has so many bytes there, as long as it lives, which `self` sees to.
        unsafe { slice::from_raw_parts(start, len) }
    }

    /// Its bytes, to be changed. Whoever made it with [`of_mut`](Self::of_mut) may.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, len) = self.place();
        // SAFETY: as for `bytes`; the array is writable, and this is the only way to it from Rust.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    fn place(&self) -> (*mut u8, usize) {
        let len = self.array.len() * self.array.dtype().itemsize();
        // SAFETY: it is an array, and its fields are there while it lives.
        let start = unsafe { (*_PyArray_GET_ITEM_DATA(self.array.as_array_ptr())).data };
        if len == 0 { (ptr::NonNull::dangling().as_ptr(), 0) } else { (start.cast(), len) }
    }
}

/// What the core calls the elements of a dtype; bytes where it has no name for them.
pub(crate) fn element(dtype: &Bound<'_, PyArrayDescr>) -> Element {
    let is_native = matches!(dtype.byteorder(), b'=' | b'|') && !dtype.has_fields() && !dtype.has_subarray();
    let kind = match dtype.kind() {
        b'u' => 'u',
        b'i' => 'i',
        b'f' => 'f',
        b'c' => 'c',
        b'b' => return Element::named("bool").unwrap_or(Element::BYTE),
        _ => return Element::BYTE,
    };
    let named = Element::named(&format!("{kind}{}", dtype.itemsize() * 8));
    named.filter(|_| is_native).unwrap_or(Element::BYTE)
}

/// An array over memory that belongs to `base`, read-only unless said otherwise.
///
/// # Safety
/// At `start` there are as many bytes as the label and the dtype say, aligned for the dtype, for as long as `base` lives. Nobody writes to them
/// meanwhile, or, if it is writable, nobody else reads or writes.
pub(crate) unsafe fn view<'py>(
    label: &Label,
    dtype: Bound<'py, PyArrayDescr>,
    start: *mut u8,
    base: Bound<'py, PyAny>,
    is_writable: bool,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = dtype.py();
    let mut extents: Vec<npyffi::npy_intp> = label.shape.iter().map(|extent| *extent as npyffi::npy_intp).collect();
    let order = if label.is_fortran { NPY_ARRAY_F_CONTIGUOUS } else { NPY_ARRAY_C_CONTIGUOUS };
    let flags = order | if is_writable { NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: the caller vouches for the memory; the dtype's reference is given away, as the function wants it.
    let array = unsafe {
        PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            dtype.into_dtype_ptr(),
            extents.len() as c_int,
            extents.as_mut_ptr(),
            ptr::null_mut(),
            start.cast(),
            flags,
            ptr::null_mut(),
        )
    };
    // SAFETY: a new reference, or null and an exception.
    let array = unsafe { Bound::from_owned_ptr_or_err(py, array)? }.cast_into::<PyUntypedArray>()?;
    // SAFETY: it has no base yet; the reference to the base is given away, also if it fails.
    if unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_array_ptr(), base.into_ptr()) } < 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(array)
}

/// Makes an array read-only for good, if its base is no array that can be written to.
pub(crate) fn make_read_only(array: &Bound<'_, PyUntypedArray>) {
    // SAFETY: it is an array, and other threads look at its flags only while they are attached to the interpreter, as this one is.
    unsafe { (*_PyArray_GET_ITEM_DATA(array.as_array_ptr())).flags &= !NPY_ARRAY_WRITEABLE };
}
