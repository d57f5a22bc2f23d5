! Outcrop for Fortran 2018: tapes of snapshots, and checkpoints that survive.
!
! Compile this file, with the .inc files beside it, together with the program, by the same compiler, and link with -loutcrop. What each call does is said in outcrop.h.
!
! Arrays are passed as they are, of any type and up to 7 dimensions; they must be contiguous. What a component that is allocatable or a
! pointer refers to is not saved: pass it by itself. So a derived type is refused, unless the program says is_plain=.true.: that it has
! no such components. Keys and versions may be integers of 32 or 64 bits. Every call has two optional arguments: status,
! which is 0 or one of the numbers below, and message, which is set if something went wrong, as far as it is long enough. Without
! status, a failure ends the program with the message.
!
! A tape, store, session, slot or snapshot that is not closed is closed when its variable goes out of scope, and a failure is written to
! standard error. So a variable must not be a copy of another one.
module outcrop
  use, intrinsic :: iso_c_binding, only: c_associated, c_char, c_double, c_f_pointer, c_int, c_int32_t, c_int64_t, c_loc, &
    c_null_char, c_null_ptr, c_ptr, c_size_t
  use, intrinsic :: iso_fortran_env, only: error_unit, int16, int32, int64, int8, real32, real64
  implicit none
  private

  integer(c_int), parameter, public :: outcrop_ok = 0, outcrop_usage = 10, outcrop_exists = 11, outcrop_missing = 12, &
    outcrop_too_large = 13, outcrop_full = 14, outcrop_held = 15, outcrop_damaged = 16, outcrop_storage = 17, &
    outcrop_busy = 18, outcrop_panic = 20, outcrop_version = 21

  ! Where a version may have come to: all directories, or host memory. Directories are 1, 2, ...
  integer(c_int), parameter, public :: outcrop_all = 0, outcrop_host = -1

  ! Which index of an array runs fastest in memory: the last one, as in C, or the first one, as in Fortran.
  integer(c_int), parameter, public :: outcrop_row_major = 0, outcrop_column_major = 1

  ! The length of a list in the box of a part of it, in the last dimension.
  integer(c_size_t), parameter, public :: outcrop_list = 281474976710655_c_size_t

  ! As long as the name of a region can be.
  integer, parameter, public :: outcrop_name_length = 240

  ! As many dimensions as a region can have.
  integer(c_size_t), parameter :: dimensions_max = 32

  ! The version that this module was written for: 0.1.0.
  integer(c_int32_t), parameter :: module_version = 0 * 65536 + 1 * 256 + 0

  ! What regions are made of, by the numbers of outcrop_element.
  integer(c_int), parameter :: of_bytes = 0, of_int8 = 1, of_int16 = 3, of_int32 = 5, of_int64 = 7, of_real32 = 9, &
    of_real64 = 10, of_complex32 = 11, of_complex64 = 12

  ! What may have components that bytes say nothing of.
  integer(c_int), parameter :: of_unknown = -1

  ! A slot in the program's hands, to compute into: c_f_pointer(lent%data, array, shape).
  type, public :: outcrop_lent
    type(c_ptr), private :: handle = c_null_ptr
    type(c_ptr) :: data = c_null_ptr
    integer(c_size_t) :: bytes = 0
  contains
    procedure :: seal => lent_seal
    procedure :: seal_and_keep => lent_seal_and_keep
    procedure :: abandon => lent_abandon
    final :: lent_end
  end type

  ! A snapshot in the program's hands, to be read in place: c_f_pointer(past%data, array, shape).
  type, public :: outcrop_past
    type(c_ptr), private :: handle = c_null_ptr
    type(c_ptr) :: data = c_null_ptr
    integer(c_size_t) :: bytes = 0
  contains
    procedure :: release => past_release
    final :: past_end
  end type

  ! What a tape has done until now.
  type, bind(c), public :: outcrop_tape_stats
    integer(c_int64_t) :: saves, saved_bytes, reads, hits, late, misses
    real(c_double) :: save_seconds, wait_seconds, read_seconds, move_seconds, helper_seconds
  end type

  ! Snapshots that sink and come back up.
  type, public :: outcrop_tape
    type(c_ptr), private :: handle = c_null_ptr
  contains
    procedure :: open => tape_open
    procedure :: clone => tape_clone
    generic :: save => tape_save, tape_save_int32
    generic :: lend => tape_lend, tape_lend_int32, tape_lend_int32_int64, tape_lend_int64_int32
    generic :: take => tape_take, tape_take_int32
    generic :: get => tape_get, tape_get_int32
    generic :: take_into => tape_take_into, tape_take_into_int32
    generic :: discard => tape_discard, tape_discard_int32
    generic :: size => tape_size, tape_size_int32
    procedure :: stats => tape_stats
    procedure :: stats_json => tape_stats_json
    procedure :: write_trace => tape_write_trace
    procedure :: close => tape_close
    procedure, private :: tape_save, tape_lend, tape_take, tape_get, tape_take_into, tape_discard, tape_size
    procedure, private :: tape_save_int32, tape_lend_int32, tape_lend_int32_int64, tape_lend_int64_int32, tape_take_int32, &
      tape_get_int32, tape_take_into_int32, tape_discard_int32, tape_size_int32
    final :: tape_end
  end type

  ! One series of versions.
  type, public :: outcrop_session
    type(c_ptr), private :: handle = c_null_ptr
  contains
    generic :: protect => session_protect, session_protect_box, session_protect_box_int32
    procedure :: unprotect => session_unprotect
    procedure :: region_options => session_region_options
    generic :: save => session_save, session_save_int32
    generic :: wait => session_wait, session_wait_int32
    generic :: has_reached => session_has_reached, session_has_reached_int32
    generic :: restore => session_restore, session_restore_int32
    generic :: restore_latest => session_restore_latest, session_restore_latest_int32
    procedure :: skipped => session_skipped
    generic :: latest => session_latest, session_latest_int32
    procedure :: versions => session_versions
    generic :: region_names => session_region_names, session_region_names_int32
    generic :: region_size => session_region_size, session_region_size_int32
    generic :: region_shape => session_region_shape, session_region_shape_int32
    generic :: read => session_read, session_read_int32
    procedure :: mark_dirty => session_mark_dirty
    generic :: rewind => session_rewind, session_rewind_int32
    procedure :: rewind_all => session_rewind_all
    procedure :: forget_incomplete => session_forget_incomplete
    procedure :: flush => session_flush
    procedure :: close => session_close
    procedure, private :: session_protect, session_protect_box, session_protect_box_int32, session_save, session_wait, &
      session_has_reached, session_restore, session_restore_latest, session_latest, session_region_names, session_region_size, &
      session_region_shape, session_read, session_rewind
    procedure, private :: session_save_int32, session_wait_int32, session_has_reached_int32, session_restore_int32, &
      session_restore_latest_int32, session_latest_int32, session_region_names_int32, session_region_size_int32, &
      session_region_shape_int32, session_read_int32, session_rewind_int32
    final :: session_end
  end type

  ! A place for checkpoints.
  type, public :: outcrop_store
    type(c_ptr), private :: handle = c_null_ptr
  contains
    procedure :: open => store_open
    procedure :: session => store_session
    procedure :: due => store_due
    procedure :: close => store_close
    final :: store_end
  end type

  include 'outcrop_calls.inc'

contains

  include 'outcrop_look.inc'
  include 'outcrop_int32.inc'
  include 'outcrop_final.inc'

  ! Opens a tape as a TOML text describes it.
  subroutine tape_open(self, config, status, message)
    class(outcrop_tape), intent(inout) :: self
    character(*), intent(in) :: config
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_tape_open(module_version, config // c_null_char, self%handle), status, message)
  end subroutine

  ! Another handle to the same tape, for another thread.
  subroutine tape_clone(self, clone, status, message)
    class(outcrop_tape), intent(in) :: self
    type(outcrop_tape), intent(inout) :: clone
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_tape_clone(self%handle, clone%handle), status, message)
  end subroutine

  ! Saves values by copying them. Returns when the program may change them again.
  subroutine tape_save(self, key, values, status, message, is_plain)
    class(outcrop_tape), intent(in) :: self
    integer(int64), intent(in) :: key
    class(*), intent(in), target :: values(..)
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    logical, intent(in), optional :: is_plain
    if (is_refused(key, values, is_plain, status, message)) return
    call ends(c_tape_save(self%handle, key, place_of(values), bytes_of(values)), status, message)
  end subroutine

  ! Lends the slot of a new snapshot of so many bytes.
  subroutine tape_lend(self, key, bytes, lent, status, message)
    class(outcrop_tape), intent(in) :: self
    integer(int64), intent(in) :: key
    integer(c_size_t), intent(in) :: bytes
    type(outcrop_lent), intent(inout) :: lent
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (is_negative(key, status, message)) return
    lent%bytes = bytes
    call ends(c_tape_lend(self%handle, key, bytes, lent%data, lent%handle), status, message)
  end subroutine

  ! Makes a lent slot a snapshot.
  subroutine lent_seal(self, status, message)
    class(outcrop_lent), intent(inout) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    self%data = c_null_ptr
    call ends(c_lent_seal(self%handle), status, message)
  end subroutine

  ! Makes a lent slot a snapshot and goes on reading it.
  subroutine lent_seal_and_keep(self, past, status, message)
    class(outcrop_lent), intent(inout) :: self
    type(outcrop_past), intent(inout) :: past
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    past%data = self%data
    past%bytes = self%bytes
    self%data = c_null_ptr
    call ends(c_lent_seal_and_keep(self%handle, past%handle), status, message)
  end subroutine

  ! Gives a lent slot back; it becomes no snapshot.
  subroutine lent_abandon(self, status, message)
    class(outcrop_lent), intent(inout) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    self%data = c_null_ptr
    call ends(c_lent_abandon(self%handle), status, message)
  end subroutine

  ! Hands over a snapshot for the last time.
  subroutine tape_take(self, key, past, status, message)
    class(outcrop_tape), intent(in) :: self
    integer(int64), intent(in) :: key
    type(outcrop_past), intent(inout) :: past
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (is_negative(key, status, message)) return
    call ends(c_tape_take(self%handle, key, past%data, past%bytes, past%handle), status, message)
  end subroutine

  ! Hands over a snapshot and keeps it.
  subroutine tape_get(self, key, past, status, message)
    class(outcrop_tape), intent(in) :: self
    integer(int64), intent(in) :: key
    type(outcrop_past), intent(inout) :: past
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (is_negative(key, status, message)) return
    call ends(c_tape_get(self%handle, key, past%data, past%bytes, past%handle), status, message)
  end subroutine

  ! Ends the reading of a snapshot.
  subroutine past_release(self, status, message)
    class(outcrop_past), intent(inout) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    self%data = c_null_ptr
    call ends(c_past_release(self%handle), status, message)
  end subroutine

  ! Copies a snapshot out and drops it.
  subroutine tape_take_into(self, key, values, status, message, is_plain)
    class(outcrop_tape), intent(in) :: self
    integer(int64), intent(in) :: key
    class(*), intent(inout), target :: values(..)
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    logical, intent(in), optional :: is_plain
    if (is_refused(key, values, is_plain, status, message)) return
    call ends(c_tape_take_into(self%handle, key, place_of(values), bytes_of(values)), status, message)
  end subroutine

  ! Forgets a snapshot without reading it.
  subroutine tape_discard(self, key, status, message)
    class(outcrop_tape), intent(in) :: self
    integer(int64), intent(in) :: key
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (is_negative(key, status, message)) return
    call ends(c_tape_discard(self%handle, key), status, message)
  end subroutine

  ! What the tape has done until now.
  subroutine tape_stats(self, stats, status, message)
    class(outcrop_tape), intent(in) :: self
    type(outcrop_tape_stats), intent(out) :: stats
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_tape_stats(self%handle, stats, storage_size(stats, c_size_t) / 8), status, message)
  end subroutine

  ! Ends a handle; with the last one, the tape.
  subroutine tape_close(self, status, message)
    class(outcrop_tape), intent(in) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_tape_close(self%handle), status, message)
  end subroutine

  ! Opens a store as a TOML text describes it.
  subroutine store_open(self, config, status, message)
    class(outcrop_store), intent(inout) :: self
    character(*), intent(in) :: config
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_store_open(module_version, config // c_null_char, self%handle), status, message)
  end subroutine

  ! Opens a series of versions.
  subroutine store_session(self, name, session, status, message)
    class(outcrop_store), intent(in) :: self
    character(*), intent(in) :: name
    type(outcrop_session), intent(inout) :: session
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_store_session(self%handle, trim(name) // c_null_char, session%handle), status, message)
  end subroutine

  ! Whether it is time to save.
  subroutine store_due(self, is_due, status, message)
    class(outcrop_store), intent(in) :: self
    logical, intent(out) :: is_due
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    integer(c_int) :: due
    due = 0
    call ends(c_store_due(self%handle, due), status, message)
    is_due = due /= 0
  end subroutine

  ! Ends a handle. Its sessions go on.
  subroutine store_close(self, status, message)
    class(outcrop_store), intent(in) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_store_close(self%handle), status, message)
  end subroutine

  ! Protects a variable or array, which must be a target: every save has it, and every restore writes to it. It must stay where it is
  ! until the session is closed, or the name is protected again or unprotected.
  subroutine session_protect(self, name, values, status, message, is_plain)
    class(outcrop_session), intent(in) :: self
    character(*), intent(in) :: name
    class(*), intent(inout), target :: values(..)
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    logical, intent(in), optional :: is_plain
    if (is_refused(0_int64, values, is_plain, status, message)) return
    call ends(protected(self, name, values, [integer(c_size_t) ::], [integer(c_size_t) ::], .false.), status, message)
  end subroutine

  ! The same for a part (a box) of a global array of shape `global`. `offset` is how many elements lie before the part in each
  ! dimension: 0 if the part begins where the global array does.
  subroutine session_protect_box(self, name, values, global, offset, status, message, is_plain)
    class(outcrop_session), intent(in) :: self
    character(*), intent(in) :: name
    class(*), intent(inout), target :: values(..)
    integer(int64), intent(in) :: global(:), offset(:)
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    logical, intent(in), optional :: is_plain
    if (is_refused(0_int64, values, is_plain, status, message)) return
    if (size(global) /= rank(values) .or. size(offset) /= rank(values)) then
      call fails(outcrop_usage, 'region ' // trim(name) // &
        ': the global shape and the offset need one number for each dimension of the array', status, message)
    else if (any(global < 0) .or. any(offset < 0)) then
      call fails(outcrop_usage, 'region ' // trim(name) // ': a global shape and an offset are whole numbers from 0 upwards', &
        status, message)
    else
      call ends(protected(self, name, values, int(global, c_size_t), int(offset, c_size_t), .true.), status, message)
    end if
  end subroutine

  subroutine session_protect_box_int32(self, name, values, global, offset, status, message, is_plain)
    class(outcrop_session), intent(in) :: self
    character(*), intent(in) :: name
    class(*), intent(inout), target :: values(..)
    integer(int32), intent(in) :: global(:), offset(:)
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    logical, intent(in), optional :: is_plain
    call self%session_protect_box(name, values, int(global, int64), int(offset, int64), status, message, is_plain)
  end subroutine

  ! Protects an array with its shape and, if there is one, its box. Elements without a name are bytes: these are one more
  ! dimension, the one that runs fastest.
  function protected(session, name, values, global, offset, has_box) result(outcome)
    type(outcrop_session), intent(in) :: session
    character(*), intent(in) :: name
    class(*), intent(inout), target :: values(..)
    integer(c_size_t), intent(in) :: global(:), offset(:)
    logical, intent(in) :: has_box
    integer(c_int) :: outcome, element
    integer(c_size_t), target :: shape(dimensions_max), whole(dimensions_max), start(dimensions_max)
    type(c_ptr) :: at_whole, at_start
    integer :: at, first, last
    call describe(values, element, shape(1))
    if (element == of_unknown) element = of_bytes
    first = merge(2, 1, element == of_bytes)
    last = first - 1 + rank(values)
    whole(1) = shape(1)
    start(1) = 0
    shape(first:last) = [(size(values, at, kind=c_size_t), at=1, rank(values))]
    outcome = c_session_protect(session%handle, trim(name) // c_null_char, place_of(values), product(shape(:last)), element)
    if (outcome /= outcrop_ok) return
    at_whole = c_null_ptr
    at_start = c_null_ptr
    if (has_box) then
      whole(first:last) = global
      start(first:last) = offset
      at_whole = c_loc(whole)
      at_start = c_loc(start)
    end if
    outcome = c_session_shape(session%handle, trim(name) // c_null_char, outcrop_column_major, int(last, c_size_t), shape, &
      at_whole, at_start)
  end function

  ! Leaves a region out from here on.
  subroutine session_unprotect(self, name, status, message)
    class(outcrop_session), intent(in) :: self
    character(*), intent(in) :: name
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_session_unprotect(self%handle, trim(name) // c_null_char), status, message)
  end subroutine

  ! Saves all protected regions. Returns when the program may change them again.
  subroutine session_save(self, version, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(in) :: version
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (is_negative(version, status, message)) return
    call ends(c_session_save(self%handle, version), status, message)
  end subroutine

  ! Waits until a version is durable: on all directories, or on one of them, or in host memory.
  subroutine session_wait(self, version, layer, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(in) :: version
    integer(c_int), intent(in), optional :: layer
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    integer(c_int) :: wanted
    wanted = outcrop_all
    if (present(layer)) wanted = layer
    if (is_negative(version, status, message)) return
    call ends(c_session_wait(self%handle, version, wanted), status, message)
  end subroutine

  ! Restores a version into all protected regions.
  subroutine session_restore(self, version, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(in) :: version
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (is_negative(version, status, message)) return
    call ends(c_session_restore(self%handle, version), status, message)
  end subroutine

  ! Restores the newest version that is undamaged, if there is one at all.
  subroutine session_restore_latest(self, version, is_found, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(out) :: version
    logical, intent(out) :: is_found
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    integer(c_int) :: found
    found = 0
    call ends(c_session_restore_latest(self%handle, version, found), status, message)
    is_found = found /= 0
  end subroutine

  ! The newest version, if there is one at all.
  subroutine session_latest(self, version, is_found, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(out) :: version
    logical, intent(out) :: is_found
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    integer(c_int) :: found
    found = 0
    call ends(c_session_latest(self%handle, version, found), status, message)
    is_found = found /= 0
  end subroutine

  ! How many bytes a region has in a version.
  subroutine session_region_size(self, version, name, bytes, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(in) :: version
    character(*), intent(in) :: name
    integer(c_size_t), intent(out) :: bytes
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    bytes = 0
    if (is_negative(version, status, message)) return
    call ends(c_session_region_size(self%handle, version, trim(name) // c_null_char, bytes), status, message)
  end subroutine

  ! The shape of a region in a version, with the memory order that it was saved in: if that is outcrop_row_major, the indices of a
  ! Fortran array are in reverse. If it is a part of a global array, its global shape and offset are allocated, too.
  subroutine session_region_shape(self, version, name, shape, order, global, offset, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(in) :: version
    character(*), intent(in) :: name
    integer(int64), allocatable, intent(out) :: shape(:)
    integer(c_int), intent(out), optional :: order
    integer(int64), allocatable, intent(out), optional :: global(:), offset(:)
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    integer(c_size_t) :: found_shape(dimensions_max), found_global(dimensions_max), found_offset(dimensions_max), count
    integer(c_int) :: found_order, found, outcome
    if (is_negative(version, status, message)) return
    count = 0
    found = 0
    found_order = outcrop_row_major
    outcome = c_session_region_shape(self%handle, version, trim(name) // c_null_char, found_order, count, found_shape, &
      dimensions_max)
    if (outcome == outcrop_ok) outcome = c_session_region_box(self%handle, version, trim(name) // c_null_char, found, &
      found_global, found_offset, dimensions_max)
    if (outcome == outcrop_ok) then
      shape = int(found_shape(:count), int64)
      if (present(order)) order = found_order
      if (present(global) .and. found /= 0) global = int(found_global(:count), int64)
      if (present(offset) .and. found /= 0) offset = int(found_offset(:count), int64)
    end if
    call ends(outcome, status, message)
  end subroutine

  ! Says that bytes of a region have changed although this program has not written them. The first byte has offset 0.
  subroutine session_mark_dirty(self, name, offset, bytes, status, message)
    class(outcrop_session), intent(in) :: self
    character(*), intent(in) :: name
    integer(c_size_t), intent(in) :: offset, bytes
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_session_mark_dirty(self%handle, trim(name) // c_null_char, offset, bytes), status, message)
  end subroutine

  ! Forgets all versions above this one, for good.
  subroutine session_rewind(self, version, status, message)
    class(outcrop_session), intent(in) :: self
    integer(int64), intent(in) :: version
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (is_negative(version, status, message)) return
    call ends(c_session_rewind(self%handle, version), status, message)
  end subroutine

  ! Forgets all versions, for good.
  subroutine session_rewind_all(self, status, message)
    class(outcrop_session), intent(in) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_session_rewind_all(self%handle), status, message)
  end subroutine

  ! Forgets versions that not all ranks have, for good.
  subroutine session_forget_incomplete(self, status, message)
    class(outcrop_session), intent(in) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_session_forget_incomplete(self%handle), status, message)
  end subroutine

  ! Waits until everything under way is done.
  subroutine session_flush(self, status, message)
    class(outcrop_session), intent(in) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_session_flush(self%handle), status, message)
  end subroutine

  ! As flush, and ends the session.
  subroutine session_close(self, status, message)
    class(outcrop_session), intent(in) :: self
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    call ends(c_session_close(self%handle), status, message)
  end subroutine

  ! Ends a call: tells the program how it went, or ends the program if it does not want to know.
  subroutine ends(outcome, status, message)
    integer(c_int), intent(in) :: outcome
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (outcome == outcrop_ok) then
      if (present(status)) status = outcrop_ok
    else
      call fails(outcome, text_of(c_error()), status, message)
    end if
  end subroutine

  subroutine fails(outcome, text, status, message)
    integer(c_int), intent(in) :: outcome
    character(*), intent(in) :: text
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    if (present(message)) message = text
    if (present(status)) then
      status = outcome
    else
      write (error_unit, '(2a)') 'outcrop: ', text
      error stop 1
    end if
  end subroutine

  ! Whether a key or version cannot be one.
  function is_negative(number, status, message) result(is_so)
    integer(int64), intent(in) :: number
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    logical :: is_so
    is_so = number < 0
    if (is_so) call fails(outcrop_usage, 'keys and versions are whole numbers from 0 upwards', status, message)
  end function

  ! Whether a key or an array cannot be used.
  function is_refused(key, values, is_plain, status, message) result(is_so)
    integer(int64), intent(in) :: key
    class(*), intent(in), target :: values(..)
    logical, intent(in), optional :: is_plain
    integer(c_int), intent(out), optional :: status
    character(*), intent(inout), optional :: message
    logical :: is_so
    integer(c_int) :: element
    integer(c_size_t) :: bytes
    is_so = is_negative(key, status, message)
    if (is_so) return
    is_so = has_gaps(values)
    if (is_so) call fails(outcrop_usage, 'the array is not contiguous; give all of it, or a copy', status, message)
    if (is_so) return
    call describe(values, element, bytes)
    is_so = element == of_unknown
    if (is_so .and. present(is_plain)) is_so = .not. is_plain
    if (is_so) call fails(outcrop_usage, 'this is of a derived type, or of a kind without a name: it would be saved as bytes, ' // &
      'without what components that are allocatable or pointers refer to; pass is_plain=.true. if there are none, or pass the ' // &
      'components by themselves', status, message)
  end function

  ! Whether an array is not contiguous. Of class(*), gfortran 12 does not know.
  function has_gaps(values) result(is_so)
    type(*), intent(in), target :: values(..)
    logical :: is_so
    is_so = .not. is_contiguous(values)
  end function

  function place_of(values) result(place)
    type(*), intent(in), target :: values(..)
    type(c_ptr) :: place
    place = c_loc(values)
  end function

  function bytes_of(values) result(bytes)
    class(*), intent(in) :: values(..)
    integer(c_int) :: element
    integer(c_size_t) :: bytes
    call describe(values, element, bytes)
    bytes = size(values, kind=c_size_t) * bytes
  end function

  ! What an array is made of, bytes if that has no name, and how many bytes an element has.
  subroutine describe(values, element, bytes)
    class(*), intent(in) :: values(..)
    integer(c_int), intent(out) :: element
    integer(c_size_t), intent(out) :: bytes
    element = of_unknown
    bytes = storage_size(values, c_size_t) / 8
    select rank (values)
    rank (0)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    rank (1)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    rank (2)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    rank (3)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    rank (4)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    rank (5)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    rank (6)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    rank (7)
      select type (values)
      include 'outcrop_elements.inc'
      end select
    end select
  end subroutine

  ! A text of C.
  function text_of(place) result(text)
    type(c_ptr), intent(in) :: place
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: at
    call c_f_pointer(place, letters, [c_length(place)])
    allocate (character(size(letters)) :: text)
    do at = 1, size(letters)
      text(at:at) = letters(at)
    end do
  end function
end module
