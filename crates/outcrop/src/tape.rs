//! The tape: snapshots that are written in one order and read back in another known order.

use std::{
    any::type_name,
    fmt::{self, Display},
    fs::File,
    io::{BufWriter, Write},
    marker::PhantomData,
    ops::{Deref, DerefMut},
    path::Path,
};

use outcrop_engine::{ELEMENT_ALIGN_MAX, Handle, Held, Layout, Stats};
use outcrop_layers::Buffer;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Element, Error, ErrorKind, Result, TapeBuilder, error::Problem};

/// Snapshots in a stack of layers: they drain in the background, and are prefetched before they are
/// read.
///
/// A clone is another handle to the same tape, for another thread. When the last one is dropped,
/// all layers release what they hold.
#[derive(Clone)]
pub struct Tape {
    pub(crate) handle: Handle,
}

impl Tape {
    /// Describes a new tape: its layers, fastest first, and the order in which it will be read.
    /// Nothing is opened before [`open`](TapeBuilder::open).
    ///
    /// ```
    /// # let scratch = tempfile::tempdir().unwrap();
    /// # let scratch = scratch.path();
    /// use outcrop::{Order, Tape};
    /// let tape = Tape::builder().host("2 MiB").dir(scratch, "90%").order(Order::Forward).open()?;
    /// assert_eq!(tape.stats().layers.len(), 2);
    /// # Ok::<(), outcrop::Error>(())
    /// ```
    pub fn builder() -> TapeBuilder {
        TapeBuilder::default()
    }

    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Saves `values` under `key` by copying them. Returns when the program may change them again.
    ///
    /// ```
    /// # let mut tape = outcrop::Tape::builder().host("1 MiB").open()?;
    /// let mut field = vec![1.0f64; 100];
    /// tape.save(0, &field)?;
    /// field.fill(2.0);
    /// tape.take_into(0, &mut field)?;
    /// assert_eq!(field, [1.0; 100]);
    /// # Ok::<(), outcrop::Error>(())
    /// ```
    pub fn save<T: IntoBytes + Immutable>(&mut self, key: impl Key, values: &[T]) -> Result<()> {
        let layout = Layout::single(Element::of::<T>(), size_of_val(values));
        Ok(self.handle.save(key.number()?, layout, &[values.as_bytes()])?)
    }

    /// Lends the slot of a new snapshot of `len` values, so that the program can compute directly
    /// into it. Its initial content is undefined. It becomes a snapshot when it is
    /// [sealed](Lent::seal).
    ///
    /// ```
    /// # let mut tape = outcrop::Tape::builder().host("1 MiB").open()?;
    /// let mut next = tape.lend::<f32>(0, 100)?;
    /// next.fill(0.5); // computed directly into the slot, without a copy
    /// let state = next.seal_and_keep();
    /// assert_eq!((state[99], tape.keys()), (0.5, vec![0]));
    /// # Ok::<(), outcrop::Error>(())
    /// ```
    pub fn lend<T: FromBytes + IntoBytes>(&mut self, key: impl Key, len: usize) -> Result<Lent<T>> {
        let key = key.number()?;
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Problem::Huge { key })?;
        check_alignment::<T>()?;
        let lent = self.handle.lend(key, Layout::single(Element::of::<T>(), bytes))?;
        Ok(Lent { lent, element: PhantomData })
    }

    /// Hands over a snapshot, and removes it from the tape. The key is free again at once, and the
    /// slot when the returned value is dropped.
    ///
    /// ```
    /// # let mut tape = outcrop::Tape::builder().host("1 MiB").open()?;
    /// tape.save(7, &[1u8, 2, 3])?;
    /// let past = tape.take::<u8>(7)?; // derefs to the slice, no copy
    /// assert_eq!(*past, [1, 2, 3]);
    /// assert_eq!(tape.take::<u8>(7).unwrap_err().kind(), outcrop::ErrorKind::Missing);
    /// # Ok::<(), outcrop::Error>(())
    /// ```
    pub fn take<T: FromBytes + Immutable>(&mut self, key: impl Key) -> Result<Past<T>> {
        self.read(key.number()?, true)
    }

    /// Hands over a snapshot, and keeps it on the tape.
    ///
    /// ```
    /// # let mut tape = outcrop::Tape::builder().host("1 MiB").open()?;
    /// tape.save(7, &[1u8, 2, 3])?;
    /// assert_eq!(tape.get::<u8>(7)?.len(), 3);
    /// assert_eq!(tape.keys(), [7]);
    /// # Ok::<(), outcrop::Error>(())
    /// ```
    pub fn get<T: FromBytes + Immutable>(&mut self, key: impl Key) -> Result<Past<T>> {
        self.read(key.number()?, false)
    }

    /// Copies a snapshot to `buffer`, and removes it from the tape. If the buffer has another
    /// length, nothing is changed.
    pub fn take_into<T: FromBytes + IntoBytes + Immutable>(&mut self, key: impl Key, buffer: &mut [T]) -> Result<()> {
        let key = key.number()?;
        let given = buffer.len();
        let check = |layout: &Layout| match single::<T>(key, layout)? {
            saved if saved == given => Ok(()),
            saved => Err(Problem::Length { key, saved, given }.into()),
        };
        self.handle.read_into(key, true, check, buffer.as_mut_bytes())
    }

    /// Saves `len` values of `T` at byte `offset` of a buffer on the device that is the front of
    /// this tape. Returns when the program may change them again. Kernels that write to the buffer
    /// must have ended.
    pub fn save_buffer<T>(&mut self, key: impl Key, buffer: &Buffer, offset: u64, len: usize) -> Result<()> {
        let key = key.number()?;
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Problem::Huge { key })?;
        let layout = Layout::single(Element::of::<T>(), bytes);
        Ok(self.handle.save_buffer(key, layout, buffer, offset)?)
    }

    /// Copies a snapshot of values of `T` to byte `offset` of a buffer on the device that is the
    /// front of this tape, and removes it from the tape. If the buffer is too short or belongs to
    /// another device, nothing is changed.
    pub fn take_buffer<T>(&mut self, key: impl Key, buffer: &mut Buffer, offset: u64) -> Result<()> {
        let key = key.number()?;
        let room = buffer.bytes().saturating_sub(offset) as usize / size_of::<T>().max(1);
        let check = |layout: &Layout| match single::<T>(key, layout)? {
            saved if saved <= room => Ok(()),
            saved => Err(Problem::Length { key, saved, given: room }.into()),
        };
        self.handle.read_buffer(key, true, check, buffer, offset)
    }

    /// Removes a snapshot without reading it.
    pub fn discard(&mut self, key: impl Key) -> Result<()> {
        Ok(self.handle.discard(key.number()?)?)
    }

    /// Keeps the tape open without being a handle, for bindings.
    #[doc(hidden)]
    pub fn anchor(&self) -> Anchor {
        Anchor(self.handle.anchor())
    }

    /// The keys of all snapshots that can be read, in ascending order.
    pub fn keys(&self) -> Vec<u64> {
        self.handle.keys()
    }

    /// How many snapshots can be read. Takes the same time however many there are.
    pub fn count(&self) -> usize {
        self.handle.count()
    }

    /// Whether a snapshot with this key can be read.
    pub fn has(&self, key: impl Key) -> bool {
        key.number().is_ok_and(|key| self.handle.has(key))
    }

    /// How many bytes a snapshot has, wherever it is.
    pub fn bytes(&self, key: impl Key) -> Result<usize> {
        Ok(self.handle.bytes(key.number()?)?)
    }

    /// What the tape has done so far, and what it has cost the program.
    pub fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// The timeline of the run, if the tape was opened with [`trace`](TapeBuilder::trace).
    pub fn trace(&self) -> &outcrop_engine::Trace {
        self.handle.trace()
    }

    /// Writes the timeline to a file for chrome://tracing or Perfetto.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        write_trace(self.trace(), path.as_ref())
    }

    fn read<T: FromBytes + Immutable>(&mut self, key: u64, consume: bool) -> Result<Past<T>> {
        let held = self.handle.read(key, consume, |layout| single::<T>(key, layout).map(drop))?;
        Ok(Past { held, element: PhantomData })
    }
}

/// Keeps a tape open and makes handles to it, and does not count as a handle itself. A call that
/// finds no room waits as long as some handle could make room. So a program whose threads come and
/// go has an anchor, and one handle per live thread.
#[derive(Clone)]
pub struct Anchor(outcrop_engine::Anchor);

impl fmt::Debug for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Anchor")
    }
}

impl Anchor {
    /// Another handle.
    pub fn tape(&self) -> Tape {
        Tape::new(self.0.handle())
    }

    /// Like [`Tape::keys`]. An anchor cannot make room, so no call waits for it.
    pub fn keys(&self) -> Vec<u64> {
        self.0.keys()
    }

    /// Like [`Tape::count`].
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Like [`Tape::stats`].
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Like [`Tape::write_trace`].
    pub fn write_trace(&self, path: &Path) -> Result<()> {
        write_trace(self.0.trace(), path)
    }
}

fn write_trace(trace: &outcrop_engine::Trace, path: &Path) -> Result<()> {
    if !trace.is_on() {
        let message = "this tape keeps no timeline; open it with trace set to true";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        trace.write_json(&mut out)?;
        out.flush()
    };
    write().map_err(|cause| {
        Error::caused(ErrorKind::Storage, format_args!("cannot write the timeline to {}", path.display()), cause)
    })
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape").field("snapshots", &self.count()).finish_non_exhaustive()
    }
}

/// The key of a snapshot: any whole number from 0 upwards.
pub trait Key: Copy + Display + TryInto<u64> {
    /// The number.
    fn number(self) -> Result<u64> {
        self.try_into().map_err(|_| Problem::Key(self.to_string()).into())
    }
}

impl<N: Copy + Display + TryInto<u64>> Key for N {}

/// The number of elements of a snapshot with one nameless region of `T`.
fn single<T>(key: u64, layout: &Layout) -> Result<usize> {
    match layout.regions() {
        [region] if region.name.is_empty() => {
            check_element::<T>(key, &region.element)?;
            Ok(region.range.len() / size_of::<T>().max(1))
        }
        regions => Err(Problem::Region {
            key,
            names: regions.iter().map(|region| region.name.clone()).collect(),
            remedy: "read it with take_regions or get_regions".to_owned(),
        }
        .into()),
    }
}

/// Checks that a region of such elements can be read as `T`.
pub(crate) fn check_element<T>(key: u64, saved: &Element) -> Result<()> {
    let asked = Element::of::<T>();
    if *saved == asked {
        return check_alignment::<T>();
    }
    Err(Problem::Element { key, saved: saved.name().to_owned(), asked: asked.name().to_owned() }.into())
}

/// Whether slots and regions are aligned as `T` needs it.
fn check_alignment<T>() -> Result<()> {
    match align_of::<T>() {
        align if align <= ELEMENT_ALIGN_MAX => Ok(()),
        align => Err(Problem::Alignment { asked: type_name::<T>(), align, most: ELEMENT_ALIGN_MAX }.into()),
    }
}

/// The bytes of a region as elements. Their length and alignment were checked before.
pub(crate) fn elements<T: FromBytes + Immutable>(bytes: &[u8]) -> &[T] {
    <[T]>::ref_from_bytes(bytes).unwrap_or_else(|_| unreachable!("a region is aligned and holds whole elements"))
}

/// Like [`elements`], for writing.
pub(crate) fn elements_mut<T: FromBytes + IntoBytes>(bytes: &mut [u8]) -> &mut [T] {
    <[T]>::mut_from_bytes(bytes).unwrap_or_else(|_| unreachable!("a region is aligned and holds whole elements"))
}

/// A lent slot that the program computes into. If it is dropped without [`seal`](Self::seal), there
/// is no snapshot.
#[must_use = "a slot that is not sealed leaves no snapshot"]
pub struct Lent<T> {
    lent: outcrop_engine::Lent,
    element: PhantomData<T>,
}

impl<T> Lent<T> {
    /// Turns the slot into a snapshot.
    pub fn seal(self) {
        self.lent.seal();
    }

    /// Turns the slot into a snapshot, and keeps it readable here, so that the next state can be
    /// computed from it into the next slot.
    pub fn seal_and_keep(self) -> Past<T> {
        Past { held: self.lent.seal_and_keep(), element: PhantomData }
    }
}

impl<T: FromBytes + Immutable> Deref for Lent<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        elements(&self.lent)
    }
}

impl<T: FromBytes + IntoBytes + Immutable> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        elements_mut(&mut self.lent)
    }
}

/// A snapshot that was handed over, read in place. Dropping it frees its slot.
pub struct Past<T> {
    held: Held,
    element: PhantomData<T>,
}

impl<T> Past<T> {
    /// Its key.
    pub fn key(&self) -> u64 {
        self.held.key()
    }
}

impl<T: FromBytes + Immutable> Deref for Past<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        elements(&self.held)
    }
}

impl<T> fmt::Debug for Past<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Past({}, {} bytes)", self.key(), self.held.len())
    }
}

impl<T> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.lent.len())
    }
}
