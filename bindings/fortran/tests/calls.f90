! Every call of the module, with arrays of several types and ranks, and what it says when something is wrong.
!
!   calls DIRECTORY
program calls
  use, intrinsic :: iso_c_binding, only: c_f_pointer, c_int, c_size_t
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use outcrop
  implicit none

  integer(c_int) :: status
  character(300) :: message
  character(2000) :: directory
  character(2200) :: tape_config, store_config

  type :: plain
    real :: x, y
  end type

  type :: grown
    real, allocatable :: values(:)
  end type

  call get_command_argument(1, directory)
  tape_config = 'host = "1 MiB"' // new_line('a') // 'pin = false' // new_line('a') // 'dir = [{path="' &
    // trim(directory) // '/tape", limit="16 MiB"}]'
  store_config = 'host = "1 MiB"' // new_line('a') // 'pin = false' // new_line('a') // 'dir = "' // trim(directory) // '/store"'
  call snapshots()
  call slots()
  call versions()
  call default_integers()
  call forgets_to_close()
  call forgets_to_close()
  call looks()
  print '(a)', 'every call did what it should'

contains

  subroutine demand(is_so, what)
    logical, intent(in) :: is_so
    character(*), intent(in) :: what
    if (.not. is_so) then
      print '(3a, i0, 2a)', 'not so: ', what, '; status ', status, ': ', trim(message)
      error stop 1
    end if
  end subroutine

  subroutine snapshots()
    type(outcrop_tape) :: tape, clone
    type(outcrop_past) :: past
    type(outcrop_tape_stats) :: stats
    real(real32) :: line(7)
    real(real64), allocatable :: cube(:, :, :), other(:, :, :)
    integer(int32) :: one
    integer(int64) :: many(5)
    character(5) :: words(2)
    integer :: at

    message = ''
    call tape%save(1_int64, line, status, message)
    call demand(status == outcrop_usage .and. index(message, 'NULL') > 0, 'what is not open is refused')
    call tape%open('hots = 3', status, message)
    call demand(status == outcrop_usage .and. index(message, 'did you mean host') > 0, 'a wrong key is named')
    call tape%open(tape_config)

    line = [(real(at), at=1, 7)]
    many = [(int(at, int64) ** 9, at=1, 5)]
    allocate (cube(3, 4, 5), other(3, 4, 5))
    call random_number(cube)
    call tape%save(1_int64, line)
    call tape%save(2_int64, many)
    call tape%save(3_int64, cube)
    call tape%save(4_int64, 42_int32)
    call tape%save(4_int64, one, status, message)
    call demand(status == outcrop_exists, 'a key is there once')
    call tape%save(-4_int64, one, status, message)
    call demand(status == outcrop_usage .and. index(message, 'from 0') > 0, 'no negative keys')
    call tape%save(5_int64, cube(1:2, :, :), status, message)
    call demand(status == outcrop_usage .and. index(message, 'contiguous') > 0, 'no array with gaps')
    call tape%save(5_int64, cube(:, :, 2:3))

    call tape%take_into(3_int64, other(:, :, 1:2), status, message)
    call demand(status == outcrop_usage .and. index(message, 'nothing was taken') > 0, 'no array of another size')
    call tape%take_into(3_int64, other)
    call demand(all(cube == other), 'a cube comes back')
    call tape%take_into(5_int64, other(:, :, 1:2))
    call demand(all(other(:, :, 1:2) == cube(:, :, 2:3)), 'a slice comes back')
    call tape%take_into(4_int64, one)
    call demand(one == 42, 'a number comes back')
    words = ['north', 'south']
    call tape%save(6_int64, words)
    words = ''
    call tape%take_into(6_int64, words)
    call demand(all(words == ['north', 'south']), 'texts come back with all their letters')
    many = 0
    call tape%clone(clone)
    call tape%close()
    call clone%take_into(2_int64, many)
    call demand(many(5) == 5_int64 ** 9, 'from another handle too')
    call clone%get(1_int64, past)
    call demand(past%bytes == 28, 'its length is known')
    call past%release()
    call past%release(status, message)
    call demand(status == outcrop_usage .and. index(message, 'closed before') > 0, 'released once only')
    call clone%discard(1_int64)
    call clone%take(1_int64, past, status, message)
    call demand(status == outcrop_missing, 'what was discarded is gone')
    call clone%stats(stats)
    call demand(stats%saves == 6 .and. stats%saved_bytes == 28 + 40 + 480 + 4 + 192 + 10, 'all is counted')
    call clone%close()
  end subroutine

  ! Every state is computed from the one before, slot to slot.
  subroutine slots()
    type(outcrop_tape) :: tape
    type(outcrop_lent) :: lent
    type(outcrop_past) :: past, before
    real(real64), pointer :: state(:, :), earlier(:, :)
    integer(int64) :: key
    integer(c_size_t), parameter :: bytes = 8 * 20 * 30

    call tape%open(tape_config)
    do key = 0, 9
      call tape%lend(key, bytes, lent)
      call c_f_pointer(lent%data, state, [20, 30])
      if (key == 0) then
        state = 1
      else
        call c_f_pointer(before%data, earlier, [20, 30])
        state = 2 * earlier
        call before%release()
      end if
      call lent%seal_and_keep(before)
    end do
    call before%release()
    do key = 9, 0, -1
      call tape%take(key, past)
      call c_f_pointer(past%data, state, [20, 30])
      call demand(all(state == 2.0_real64 ** key), 'what was computed in a slot is read in place')
      call past%release()
    end do
    call tape%lend(1_int64, bytes, lent)
    call lent%abandon()
    call tape%lend(1_int64, bytes, lent)
    call lent%seal()
    call lent%seal(status, message)
    call demand(status == outcrop_usage, 'sealed once only')
    call tape%close()
  end subroutine

  subroutine versions()
    type(outcrop_store) :: store
    type(outcrop_session) :: session
    real(real64), allocatable, target :: field(:, :)
    complex(real32), target :: waves(10)
    logical, target :: flags(3)
    integer(int64), target :: step
    integer(int64) :: version
    integer(c_size_t) :: bytes
    logical :: is_found, is_due

    call store%open(store_config)
    call store%session('run', session)
    call store%due(is_due)
    call demand(.not. is_due, 'nothing is due without an interval')
    allocate (field(10, 20), source=1.0_real64)
    waves = (1.0, 2.0)
    flags = [.true., .false., .true.]
    step = 3
    call session%protect('field', field)
    call session%protect('waves', waves)
    call session%protect('flags', flags)
    call session%protect('step', step)
    call session%protect('gaps', field(1:2, :), status, message)
    call demand(status == outcrop_usage .and. index(message, 'contiguous') > 0, 'no region with gaps')
    call session%restore_latest(version, is_found)
    call demand(.not. is_found, 'there is nothing yet')
    call session%save(1_int64)
    field = 2
    call session%mark_dirty('field', 0_c_size_t, 8_c_size_t)
    call session%save(2_int64)
    call session%wait(2_int64)
    call session%wait(2_int64, 1)
    call session%wait(2_int64, outcrop_host)
    call session%wait(2_int64, 2, status, message)
    call demand(status == outcrop_usage, 'there is no second directory')
    call session%flush()

    field = 0
    waves = 0
    flags = .false.
    step = 0
    call session%restore(1_int64)
    call demand(all(field == 1) .and. all(waves == (1.0, 2.0)) .and. flags(1) .and. step == 3, 'all is as it was')
    call session%restore_latest(version, is_found)
    call demand(is_found .and. version == 2 .and. all(field == 2), 'the newest comes back')
    call session%region_size(2_int64, 'field', bytes)
    call demand(bytes == 1600, 'the size of a region is known')
    call session%rewind(1_int64)
    call session%latest(version, is_found)
    call demand(is_found .and. version == 1, 'the second version is gone')
    call session%forget_incomplete()
    call session%rewind_all()
    call session%latest(version, is_found)
    call demand(.not. is_found, 'all are gone')
    call session%unprotect('gaps', status, message)
    call demand(status == outcrop_usage, 'it never was protected')
    call session%unprotect('flags')
    call session%close()
    call session%close(status, message)
    call demand(status == outcrop_usage .and. index(message, 'closed before') > 0, 'closed once only')
    call store%close()
  end subroutine

  ! Keys and versions as most programs have them, and derived types.
  subroutine default_integers()
    type(outcrop_tape) :: tape
    type(outcrop_store) :: store
    type(outcrop_session) :: session
    type(outcrop_lent) :: lent
    type(outcrop_past) :: past
    type(plain) :: points(3)
    type(grown), target :: tree
    real, target :: line(4)
    integer :: key, version
    integer(c_size_t) :: bytes
    logical :: is_found, is_there
    logical :: flags(2)

    call tape%open(tape_config)
    line = [1, 2, 3, 4]
    do key = 1, 3
      call tape%save(key, line * key)
    end do
    call tape%save(-1, line, status, message)
    call demand(status == outcrop_usage .and. index(message, 'from 0') > 0, 'no negative keys')
    call tape%size(2, bytes)
    call demand(bytes == 16, 'the length of a snapshot is known')
    call tape%take_into(2, line)
    call demand(all(line == [2, 4, 6, 8]), 'a default integer is a key')
    call tape%get(1, past)
    call past%release()
    call tape%take(1, past)
    call past%release()
    call tape%discard(3)
    call tape%lend(4, 16, lent)
    call lent%abandon()
    call tape%lend(4, -16, lent, status, message)
    call demand(status == outcrop_too_large, 'no slot has fewer bytes than none')
    flags = [.true., .false.]
    call tape%save(5, flags)
    flags = .false.
    call tape%take_into(5, flags)
    call demand(flags(1) .and. .not. flags(2), 'logical values come back')

    points = plain(1, 2)
    call tape%save(6, points, status, message)
    call demand(status == outcrop_usage .and. index(message, 'is_plain=.true.') > 0, 'a derived type needs a word')
    call tape%save(6, points, is_plain=.true.)
    points = plain(0, 0)
    call tape%take_into(6, points, status, message)
    call demand(status == outcrop_usage, 'also when it is read')
    call tape%take_into(6, points, is_plain=.true.)
    call demand(all(points%y == 2), 'and comes back')

    call store%open(store_config)
    call store%session('default', session)
    allocate (tree%values(10))
    call session%protect('tree', tree, status, message)
    call demand(status == outcrop_usage .and. index(message, 'allocatable') > 0, 'what would be lost is refused')
    call session%protect('values', tree%values)
    tree%values = 7
    call session%save(1)
    call session%wait(1)
    call session%has_reached(1, is_there)
    call demand(is_there, 'it is there')
    tree%values = 0
    call session%restore_latest(version, is_found)
    call demand(is_found .and. version == 1 .and. all(tree%values == 7), 'a version is a default integer')
    call session%restore(1)
    call session%latest(version, is_found)
    call demand(is_found .and. version == 1, 'and the latest is one')
    call session%region_size(1, 'values', bytes)
    call demand(bytes == 40, 'as everywhere')
    call session%save(5000000000_int64)
    call session%latest(version, is_found, status, message)
    call demand(status == outcrop_usage .and. index(message, '32 bits') > 0, 'one that does not fit is refused')
    call session%rewind(1)
    call session%close()
    call store%close()
    call tape%close()
  end subroutine

  ! Nothing is closed, and the next one finds all of it free.
  subroutine forgets_to_close()
    type(outcrop_tape) :: tape
    type(outcrop_store) :: store
    type(outcrop_session) :: session
    type(outcrop_lent) :: lent
    type(outcrop_past) :: past
    integer, target :: step
    integer(int64) :: version
    logical :: is_found

    call tape%open(tape_config)
    call tape%save(1, 42)
    call tape%get(1, past)
    call tape%lend(2, 8, lent)
    call store%open(store_config)
    call store%session('forgotten', session, status, message)
    call demand(status == outcrop_ok, 'no session is left open')
    call session%protect('step', step)
    call session%latest(version, is_found)
    if (.not. is_found) version = 0
    step = int(version) + 1
    call session%save(version + 1)
  end subroutine

  ! What a session can be asked.
  subroutine looks()
    type(outcrop_tape) :: tape
    type(outcrop_store) :: store
    type(outcrop_session) :: session
    integer(int64), allocatable :: versions(:)
    character(outcrop_name_length), allocatable :: names(:)
    character(:), allocatable :: text
    integer :: step, unit
    integer, target :: width
    real, target :: values(3)
    logical :: is_found
    integer :: version

    call store%open(store_config)
    call store%session('forgotten', session)
    call session%versions(versions)
    call demand(all(versions == [1, 2]) .and. size(versions) == 2, 'who forgot to close has saved')
    call session%read(2, 'step', step)
    call demand(step == 2, 'a region can be read by itself')
    call session%read(2, 'step', values, status, message)
    call demand(status == outcrop_usage .and. index(message, 'has 4 bytes') > 0, 'if it is as long')
    call session%protect('values', values)
    call session%protect('a/b', width, status, message)
    call demand(status == outcrop_usage .and. index(message, '/') > 0, 'names are checked when they are given')
    width = 3
    values = 5
    call session%protect('width', width)
    call session%region_options('values', 'compression = "lz4"' // new_line('a') // 'block = 256')
    call session%region_options('values', 'blok = 256', status, message)
    call demand(status == outcrop_usage .and. index(message, 'did you mean block') > 0, 'a wrong option is named')
    call session%save(3)
    call session%region_names(3, names)
    call demand(size(names) == 2 .and. names(1) == 'values' .and. names(2) == 'width', 'names of regions are known')
    call session%flush()
    call session%restore_latest(version, is_found)
    call session%skipped(text)
    call demand(is_found .and. len(text) == 0, 'nothing was passed over')
    call session%close()
    open (newunit=unit, file=trim(directory) // '/store/forgotten/rank-00000/version-00000000000000000003', access='stream', &
      form='unformatted', status='old')
    write (unit, pos=21) 'x'
    close (unit)
    call store%session('forgotten', session)
    call session%protect('step', step)
    call session%restore_latest(version, is_found)
    call session%skipped(text)
    call demand(is_found .and. version == 2 .and. index(text, 'version 3: ') == 1, 'what was passed over is known')

    call tape%open(trim(tape_config) // new_line('a') // 'trace = true')
    call tape%save(1, 42)
    call tape%stats_json(text)
    call demand(index(text, '"saves":1') > 0 .and. text(len(text):) == '}', 'all statistics are known')
    call tape%write_trace(trim(directory) // '/store/trace.json')
    inquire (file=trim(directory) // '/store/trace.json', exist=is_found)
    call demand(is_found, 'a timeline is written')
  end subroutine
end program
