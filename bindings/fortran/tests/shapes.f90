! Shapes and boxes from Fortran: as shapes.c, with its regions. What is rows there is columns here, in the same memory.
!
!   shapes DIRECTORY | shapes DIRECTORY save | shapes DIRECTORY restore SESSION
program shapes
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use outcrop
  implicit none

  type :: point
    real :: x, y
    integer :: mark
  end type

  type(outcrop_store) :: store
  type(outcrop_session) :: session
  real(real64), target :: field(4, 3)
  integer(int32), target :: tile(2, 3)
  integer(int64), target :: step
  integer(c_int) :: status
  character(300) :: message
  character(2000) :: directory, session_name

  message = ''
  call get_command_argument(1, directory)
  session_name = 'run'
  if (command_argument_count() == 2) session_name = 'fortran'
  if (command_argument_count() == 3) call get_command_argument(3, session_name)
  call store%open('host = "1 MiB"' // new_line('a') // 'pin = false' // new_line('a') // 'dir = "' // trim(directory) &
    // '/store"')
  call store%session(session_name, session)
  call protect()
  select case (command_argument_count())
  case (1)
    call come_back()
  case (2)
    call fill()
    call session%save(1_int64)
  case default
    call session%restore(1_int64)
    call demand(is_filled(), 'what was saved comes back')
  end select
  call session%close()
  call store%close()
  print '(a)', 'shapes came back'

contains

  subroutine demand(is_so, what)
    logical, intent(in) :: is_so
    character(*), intent(in) :: what
    if (.not. is_so) then
      print '(3a, i0, 2a)', 'not so: ', what, '; status ', status, ': ', trim(message)
      error stop 1
    end if
  end subroutine

  ! Three columns of nine, from the seventh on, and a tile of a plane.
  subroutine protect()
    call session%protect('field', field, [4, 9], [0, 6])
    call session%protect('tile', tile, [4_int64, 8_int64], [1_int64, 2_int64])
    call session%protect('step', step)
  end subroutine

  subroutine fill()
    integer :: at
    field = reshape([(10.0_real64 + at, at=0, 11)], [4, 3])
    tile = reshape([(20 + at, at=0, 5)], [2, 3])
    step = 30
  end subroutine

  function is_filled() result(is_so)
    logical :: is_so
    integer :: at
    is_so = all(field == reshape([(10.0_real64 + at, at=0, 11)], [4, 3])) .and. step == 30 .and. &
      all(tile == reshape([(20 + at, at=0, 5)], [2, 3]))
  end function

  subroutine come_back()
    type(point), target :: points(2, 3)
    real, target :: empty(0, 5), deep(1, 2, 1, 3, 1, 2, 1)
    character(5), target :: words(3)
    integer(int64), allocatable :: shape(:), global(:), offset(:)
    integer(c_int) :: order

    call fill()
    points = point(1, 2, 3)
    call session%protect('points', points, [2, 5], [0, 1], is_plain=.true.)
    call session%protect('empty', empty)
    call session%protect('deep', deep)
    words = ['north', 'south', 'zenit']
    deep = 7
    call session%protect('words', words)
    call session%save(1_int64)

    call session%region_shape(1_int64, 'field', shape, order, global, offset)
    call demand(all(shape == [4, 3]) .and. order == outcrop_column_major, 'a field has its shape')
    call demand(all(global == [4, 9]) .and. all(offset == [0, 6]), 'a field has its box')
    call session%region_shape(1_int64, 'tile', shape, order, global, offset)
    call demand(all(shape == [2, 3]) .and. all(global == [4, 8]) .and. all(offset == [1, 2]), 'a tile has its box')
    call session%region_shape(1_int64, 'step', shape, global=global)
    call demand(size(shape) == 0 .and. .not. allocated(global), 'a number has no dimension, and is part of nothing')
    ! What has no name is bytes, next to each other.
    call session%region_shape(1_int64, 'points', shape, order, global, offset)
    call demand(all(shape == [12, 2, 3]) .and. all(global == [12, 2, 5]) .and. all(offset == [0, 0, 1]), 'points are bytes')
    call session%region_shape(1_int64, 'empty', shape)
    call demand(all(shape == [0, 5]), 'an empty array has its shape')

    call session%region_shape(1_int64, 'deep', shape)
    call demand(all(shape == [1, 2, 1, 3, 1, 2, 1]), 'an array of seven dimensions has its shape')
    call session%region_shape(1_int64, 'words', shape)
    call demand(all(shape == [5, 3]), 'texts have all their letters')
    words = ''
    deep = 0

    call session%region_shape(1_int64, 'feild', shape, status=status, message=message)
    call demand(status == outcrop_missing .and. index(message, 'only field') > 0, 'there is no such region')
    call session%protect('tile', tile, [4, 8], [3, 2], status, message)
    call demand(status == outcrop_usage .and. index(message, 'not inside') > 0, 'a box lies inside its global array')
    call session%protect('tile', tile, [4, 8], [-1, 2], status, message)
    call demand(status == outcrop_usage .and. index(message, 'from 0') > 0, 'no negative offset')
    call session%protect('tile', tile, [4], [1, 2], status, message)
    call demand(status == outcrop_usage .and. index(message, 'each dimension') > 0, 'as many numbers as dimensions')
    call session%protect('field', field, [4, 9], [0, 5])
    call session%restore(1_int64, status, message)
    call demand(status == outcrop_usage .and. index(message, 'nothing was changed') > 0, 'another part is no place for it')
    field = 0
    call protect()
    call session%restore(1_int64)
    call demand(is_filled() .and. all(deep == 7) .and. all(words == ['north', 'south', 'zenit']), 'all is as it was')
  end subroutine
end program
