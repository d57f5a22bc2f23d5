! Heat spreads in a plate. End it when you like, with Ctrl-C or kill -9, and start it again: it goes on where it was.
!
!   gfortran outcrop.f90 heat.f90 $(pkg-config --libs outcrop) -o heat
!   ./heat DIRECTORY [STEPS [STEP AT WHICH IT KILLS ITSELF]]
program heat
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use outcrop
  implicit none

  interface
    ! Sends this process a signal.
    function raise(number) bind(c, name='raise') result(status)
      import :: c_int
      integer(c_int), value :: number
      integer(c_int) :: status
    end function
  end interface

  integer, parameter :: side = 256
  integer(int64), parameter :: every = 20
  type(outcrop_store) :: store
  type(outcrop_session) :: session
  real(real64), allocatable, target :: plate(:, :)
  integer(int64), target :: step
  integer(int64) :: version, steps, last
  logical :: is_found

  steps = number(2, 1000_int64)
  last = number(3, huge(last))
  allocate (plate(side, side), source=0.0_real64)
  plate(side / 2 + 1, side / 2 + 1) = 1e6_real64
  step = 0

  ! [begin]
  call store%open('host = "16 MiB"' // new_line('a') // 'keep_last = 3' // new_line('a') // 'dir = "' // directory() // '"')
  call store%session('heat', session)
  call session%protect('plate', plate)
  call session%protect('step', step)
  call session%restore_latest(version, is_found)
  if (is_found) print '(a, i0)', 'goes on after step ', step

  do while (step < steps)
    call spread_heat()
    step = step + 1
    if (mod(step, every) == 0) call session%save(step)  ! returns when the plate may change again
    if (step == last) call end_here()
  end do
  call session%close()  ! waits until all is durable
  call store%close()
  ! [end]
  print '(a, i0, a, z16.16)', 'the state after ', step, ' steps is ', fingerprint()
  deallocate (plate)

contains

  ! One step: every point comes nearer to the mean of its neighbours.
  subroutine spread_heat()
    real(real64), save :: before(side, side)
    real(real64) :: around
    integer :: row, column
    before = plate
    do column = 2, side - 1
      do row = 2, side - 1
        around = before(row - 1, column) + before(row + 1, column) + before(row, column - 1) + before(row, column + 1)
        plate(row, column) = before(row, column) + 0.2_real64 * (around - 4.0_real64 * before(row, column))
      end do
    end do
  end subroutine

  ! A number that tells states from each other, to the last bit.
  function fingerprint() result(hash)
    integer(int64) :: hash
    integer :: row, column
    hash = 0
    do column = 1, side
      do row = 1, side
        hash = ieor(ishftc(hash, 7), transfer(plate(row, column), hash))
      end do
    end do
  end function

  subroutine end_here()
    integer(c_int), parameter :: sigkill = 9
    if (raise(sigkill) /= 0) error stop 'cannot end here'
  end subroutine

  function directory() result(text)
    character(:), allocatable :: text
    character(2000) :: word
    text = 'heat-checkpoints'
    if (command_argument_count() < 1) return
    call get_command_argument(1, word)
    text = trim(word)
  end function

  function number(at, otherwise) result(value)
    integer, intent(in) :: at
    integer(int64), intent(in) :: otherwise
    integer(int64) :: value
    character(30) :: word
    value = otherwise
    if (command_argument_count() < at) return
    call get_command_argument(at, word)
    read (word, *) value
  end function
end program
