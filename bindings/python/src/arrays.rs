//! NumPy arrays as bytes, and bytes as NumPy arrays.

use std::{ffi::c_int, ptr, slice};

use numpy::{
    PY_ARRAY_API, PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods,
    npyffi::{
        self, _PyArray_GET_ITEM_DATA, NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_F_CONTIGUOUS, NPY_ARRAY_WRITEABLE, NpyTypes,
    },
};
use outcrop::{Element, MemoryOrder, Shape};
use pyo3::{intern, prelude::*, sync::PyOnceLock};

use crate::errors::usage;

/// An array whose bytes lie in one piece. It keeps them alive.
pub(crate) struct Flat<'py> {
    array: Bound<'py, PyUntypedArray>,
}

impl<'py> Flat<'py> {
    /// An object as such an array: itself if it is one, else what `outcrop._arrays.flat` makes of
    /// it.
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

    /// What it is made of.
    pub(crate) fn element(&self) -> PyResult<Element> {
        element(&self.array.dtype())
    }

    /// How its elements form an array, which may be a part of a global one.
    pub(crate) fn shape(&self, global: Option<&GlobalBox>) -> PyResult<Shape> {
        let order = if self.array.is_c_contiguous() { MemoryOrder::RowMajor } else { MemoryOrder::ColumnMajor };
        shape_of(self.array.py(), self.array.shape(), order, global)
    }

    /// Its bytes. As everywhere in NumPy, a program that writes to them on another thread meanwhile
    /// gets what it deserves: some old and some new ones.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (start, len) = self.place();
        // SAFETY: NumPy's array is contiguous and has so many bytes there, as long as it lives,
        // which `self` sees to.
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

/// The part of a global array that an array is: the shape of the whole, and the index of the first
/// element.
pub(crate) type GlobalBox = (Vec<usize>, Vec<usize>);

/// The shape of an array, and its box if it has one.
pub(crate) fn shape_of(
    py: Python<'_>,
    extents: &[usize],
    order: MemoryOrder,
    global: Option<&GlobalBox>,
) -> PyResult<Shape> {
    let shape = Shape::new(extents, order).and_then(|shape| match global {
        Some((global, offset)) => shape.in_box(global, offset),
        None => Ok(shape),
    });
    shape.map_err(|error| usage(py, error.to_string()))
}

/// The box of a shape.
pub(crate) fn box_of(shape: &Shape) -> Option<GlobalBox> {
    shape.global().map(|global| (global.shape().to_vec(), global.offset().to_vec()))
}

/// What the core calls the elements of a dtype: numbers by the name that all languages know, others
/// by NumPy's description.
pub(crate) fn element(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<Element> {
    static DESCRIBED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = dtype.py();
    if dtype.itemsize() == 0 {
        // NumPy takes it for a dtype whose length it may choose, and would make the array longer
        // than the region.
        return Err(usage(py, format!("elements of the dtype {dtype} have no length; choose one with a length")));
    }
    let is_native = matches!(dtype.byteorder(), b'=' | b'|')
        && !dtype.has_fields()
        && !dtype.has_subarray()
        && dtype.getattr(intern!(py, "metadata"))?.is_none();
    let name = match (dtype.kind(), dtype.itemsize()) {
        _ if !is_native => None,
        (b'b', 1) => Some("bool"),
        (b'u', 1) => Some("u8"),
        (b'u', 2) => Some("u16"),
        (b'u', 4) => Some("u32"),
        (b'u', 8) => Some("u64"),
        (b'i', 1) => Some("i8"),
        (b'i', 2) => Some("i16"),
        (b'i', 4) => Some("i32"),
        (b'i', 8) => Some("i64"),
        (b'f', 2) => Some("f16"),
        (b'f', 4) => Some("f32"),
        (b'f', 8) => Some("f64"),
        (b'c', 8) => Some("c64"),
        (b'c', 16) => Some("c128"),
        _ => None,
    };
    match name {
        Some(name) => Ok(Element::other(name, dtype.itemsize())),
        None => {
            let described = DESCRIBED.import(py, "outcrop._arrays", "described")?;
            Ok(Element::other(described.call1((dtype,))?.extract::<String>()?, dtype.itemsize()))
        }
    }
}

/// The dtype of such elements.
pub(crate) fn dtype<'py>(py: Python<'py>, element: &Element) -> PyResult<Bound<'py, PyArrayDescr>> {
    static DTYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // The most frequent ones, which need no Python.
    match element.name() {
        "f64" => return Ok(numpy::dtype::<f64>(py)),
        "f32" => return Ok(numpy::dtype::<f32>(py)),
        "u8" => return Ok(numpy::dtype::<u8>(py)),
        "i64" => return Ok(numpy::dtype::<i64>(py)),
        _ => {}
    }
    Ok(DTYPE.import(py, "outcrop._arrays", "dtype_of")?.call1((element.name(),))?.cast_into()?)
}

/// An array over memory that belongs to `base`, read-only unless said otherwise.
///
/// # Safety
/// At `start` there are as many bytes as the shape and the dtype say, aligned for the dtype, for as
/// long as `base` lives. Nobody writes to them meanwhile, or, if it is writable, nobody else reads
/// or writes.
pub(crate) unsafe fn view<'py>(
    shape: &Shape,
    dtype: Bound<'py, PyArrayDescr>,
    start: *mut u8,
    base: Bound<'py, PyAny>,
    is_writable: bool,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = dtype.py();
    let mut extents: Vec<npyffi::npy_intp> =
        shape.dimensions().iter().map(|extent| *extent as npyffi::npy_intp).collect();
    let order = match shape.order() {
        MemoryOrder::RowMajor => NPY_ARRAY_C_CONTIGUOUS,
        MemoryOrder::ColumnMajor => NPY_ARRAY_F_CONTIGUOUS,
    };
    let flags = order | if is_writable { NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: the caller vouches for the memory; the dtype's reference is given away, as the
    // function wants it.
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
    // SAFETY: it is an array, and other threads look at its flags only while they are attached to
    // the interpreter, as this one is.
    unsafe { (*_PyArray_GET_ITEM_DATA(array.as_array_ptr())).flags &= !NPY_ARRAY_WRITEABLE };
}
