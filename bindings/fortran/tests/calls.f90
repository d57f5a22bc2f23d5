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

  call get_command_argument(1, directory)
  tape_config = 'host = "1 MiB"' // new_line('a') // 'pin = false' // new_line('a') // 'dir = [{path="' &
    // trim(directory) // '/tape", limit="16 MiB"}]'
  store_config = 'host = "1 MiB"' // new_line('a') // 'pin = false' // new_line('a') // 'dir = "' // trim(directory) // '/store"'
  call snapshots()
  call slots()
  call versions()
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
end program
