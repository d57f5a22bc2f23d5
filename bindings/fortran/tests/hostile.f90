! The table of hostile calls (docs/testing.md) in Fortran, on a tape and in a store.
!
!   hostile DIRECTORY
program hostile
  use, intrinsic :: iso_c_binding, only: c_int, c_size_t
  use, intrinsic :: iso_fortran_env, only: int64, int8, real64
  use outcrop
  implicit none

  ! Fortran has no processes of its own.
  interface
    integer(c_int) function fork() bind(c, name='fork')
      import :: c_int
    end function
    integer(c_int) function raise(signal) bind(c, name='raise')
      import :: c_int
      integer(c_int), value :: signal
    end function
    integer(c_int) function wait_for(child, status, options) bind(c, name='waitpid')
      import :: c_int
      integer(c_int), value :: child, options
      integer(c_int) :: status
    end function
  end interface

  integer, parameter :: count = 20000
  character(*), parameter :: line = new_line('a')
  integer(c_int) :: status
  character(300) :: message
  character(2000) :: directory

  call get_command_argument(1, directory)
  message = ''
  call forked()
  call huge_and_zero()
  call overlapping_and_freed()
  call full()
  call read_only()
  call damaged()
  print '(a)', 'no hostile call did harm'

contains

  subroutine demand(is_so, what)
    logical, intent(in) :: is_so
    character(*), intent(in) :: what
    if (.not. is_so) then
      print '(3a, i0, 2a)', 'not so: ', what, '; status ', status, ': ', trim(message)
      error stop 1
    end if
  end subroutine

  subroutine open_tape(tape)
    type(outcrop_tape), intent(inout) :: tape
    call tape%open('host = "256 KiB"' // line // 'pin = false' // line // 'patience_seconds = 0.01' // line // 'dir = [{path="' &
      // trim(directory) // '/tape", limit="16 MiB"}]')
  end subroutine

  subroutine open_session(name, limit, session)
    character(*), intent(in) :: name, limit
    type(outcrop_session), intent(inout) :: session
    type(outcrop_store) :: store
    call store%open('host = "4 MiB"' // line // 'pin = false' // line // 'incremental = false' // line // 'dir = [{path="' &
      // trim(directory) // '/store/' // name // '", limit="' // limit // '"}]')
    call store%session(name, session)
    call store%close()
  end subroutine

  subroutine fill(values, seed)
    real(real64), intent(out) :: values(:)
    integer, intent(in) :: seed
    integer :: at
    values = [(seed + real(at, real64) / 7, at=1, size(values))]
  end subroutine

  subroutine forked()
    type(outcrop_tape) :: tape
    type(outcrop_session) :: session
    real(real64), save :: u(count)
    integer(c_int) :: child, ending
    call open_tape(tape)
    call open_session('forked', '64 MiB', session)
    call fill(u, 1)
    call tape%save(1, u)
    call session%protect('u', u)
    call session%save(1)
    child = fork()
    if (child == 0) then
      call tape%take_into(1, u, status, message)
      call demand(status == outcrop_usage, 'a tape of the parent is refused')
      call session%save(2, status, message)
      call demand(status == outcrop_usage .and. index(message, 'forked') > 0, 'so is a session')
      ! What its parent has open is lost to it, and valgrind would say so if it ended in another way.
      status = raise(9_c_int)
    end if
    call demand(wait_for(child, ending, 0_c_int) == child .and. ending == 9, 'a child is refused')
    call tape%take_into(1, u)
    call session%save(2)
    call session%close()
    call tape%close()
  end subroutine

  subroutine huge_and_zero()
    type(outcrop_tape) :: tape
    type(outcrop_lent) :: lent
    type(outcrop_session) :: session
    real(real64) :: none(0), empty(3, 0)
    real(real64), allocatable :: large(:)
    call open_tape(tape)
    call tape%lend(1_int64, huge(1_c_size_t), lent, status, message)
    call demand(status == outcrop_too_large, 'no slot is larger than memory')
    call tape%lend(1_int64, -1_c_size_t, lent, status, message)
    call demand(status /= outcrop_ok, 'no slot has less than nothing')
    call tape%save(huge(1_int64), none)
    call tape%take_into(huge(1_int64), empty)
    call tape%close()
    call tape%open('host = 0', status, message)
    call demand(status == outcrop_usage, 'no tape without memory')
    call open_session('huge', '64 MiB', session)
    allocate (large(1024 * 1024))
    call fill(large, 1)
    call session%protect('none', empty)
    call session%protect('large', large)
    call session%save(-1, status, message)
    call demand(status == outcrop_usage, 'no version below 0')
    call session%save(huge(1_int64))
    large = 0
    call session%restore(huge(1_int64))
    call demand(large(7) == 2, 'it may be larger than host memory')
    call session%close()
  end subroutine

  subroutine overlapping_and_freed()
    type(outcrop_tape) :: tape
    type(outcrop_session) :: session
    real(real64), allocatable :: u(:)
    real(real64), save :: copy(count)
    allocate (u(count))
    call open_tape(tape)
    call open_session('overlapping', '64 MiB', session)
    call fill(u, 1)
    call tape%save(1, u)
    call tape%save(2, u(2:))
    call session%protect('u', u)
    call session%protect('half', u(count / 2:))
    call session%save(1)
    u = 7
    call session%restore(1, status, message)
    call demand(status == outcrop_usage .and. index(message, 'overlap') > 0 .and. all(u == 7), 'nothing is changed')
    call session%unprotect('half')
    call session%unprotect('u')
    deallocate (u)
    call tape%take_into(1, copy)
    call demand(copy(7) == 2, 'what was saved may be freed')
    copy = 0
    call session%read(1, 'u', copy)
    call demand(copy(7) == 2, 'what was a version may be freed')
    call session%close()
    call tape%close()
  end subroutine

  subroutine full()
    type(outcrop_tape) :: tape
    type(outcrop_lent) :: lent, other
    type(outcrop_session) :: session
    integer(c_size_t), parameter :: bytes = 600000
    real(real64), save :: u(count), large(10 * count)
    call tape%open('host = "1 MiB"' // line // 'pin = false' // line // 'patience_seconds = 0.01')
    call tape%lend(1_int64, bytes, lent)
    call tape%lend(2_int64, bytes, other, status, message)
    call demand(status == outcrop_held, 'the program has the room')
    call lent%seal()
    call tape%lend(2_int64, bytes, other, status, message)
    call demand(status == outcrop_full, 'nobody can make room')
    call tape%close()
    call open_session('full', '512 KiB', session)
    call fill(u, 1)
    call fill(large, 2)
    call session%protect('u', u)
    call session%save(1)
    call session%flush()
    call session%protect('u', large)
    call session%save(2)
    call session%flush(status, message)
    call demand(status == outcrop_storage .and. index(message, 'version 2') > 0, 'what has failed is said')
    call session%protect('u', u)
    call session%save(2)
    call session%wait(2)
    call session%close()
  end subroutine

  subroutine read_only()
    type(outcrop_tape) :: tape
    type(outcrop_store) :: store
    call tape%open('host = "1 MiB"' // line // 'dir = [{path="/proc/outcrop", limit="1 MiB"}]', status, message)
    call demand(status == outcrop_storage, 'a tape needs a directory that can be written')
    call store%open('dir = "/proc/outcrop"', status, message)
    call demand(status == outcrop_storage, 'so does a store')
  end subroutine

  ! Changes every byte of a pack's middle third.
  subroutine damage(path)
    character(*), intent(in) :: path
    integer(int64) :: bytes, at
    integer(int8) :: byte
    integer :: unit
    open (newunit=unit, file=path, access='stream', form='unformatted', action='readwrite', status='old')
    inquire (unit=unit, size=bytes)
    do at = bytes / 3, 2 * bytes / 3, 1000
      read (unit, pos=at) byte
      write (unit, pos=at) ieor(byte, 1_int8)
    end do
    close (unit)
  end subroutine

  subroutine damaged()
    type(outcrop_session) :: session
    real(real64), save :: u(count), v(count)
    integer(int64) :: version
    logical :: is_found
    call open_session('damaged', '64 MiB', session)
    call fill(u, 1)
    call fill(v, 2)
    call session%protect('u', u)
    call session%protect('v', v)
    call session%save(1)
    call session%close()
    call damage(trim(directory) // '/store/damaged/damaged/rank-00000/pack-00000000000000000000')
    call open_session('damaged', '64 MiB', session)
    call session%protect('u', u)
    call session%protect('v', v)
    u = 7
    v = 8
    call session%restore_latest(version, is_found, status, message)
    call demand(status == outcrop_damaged, 'damage is found')
    call demand(all(u == 7) .and. all(v == 8), 'a restore is all or nothing')
    call session%close()
  end subroutine
end program
