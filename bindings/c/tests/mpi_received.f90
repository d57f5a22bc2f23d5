! What MPI writes for a program in Fortran is reported to the byte, by the module mpi and, with -DF08, by mpi_f08.
program received
#ifdef F08
  use mpi_f08
#else
  use mpi
#endif
  use, intrinsic :: iso_c_binding
  implicit none
  interface
    integer(c_int64_t) function watch(first, last) bind(c, name="outcrop_mpi_watch")
      import
      integer(c_intptr_t), value :: first, last
    end function
    subroutine take(id, note, context) bind(c, name="outcrop_mpi_take")
      import
      integer(c_int64_t), value :: id
      type(c_funptr), value :: note
      type(c_ptr), value :: context
    end subroutine
  end interface
  integer, target :: field(100)
  integer :: error, rank
#ifdef F08
  type(MPI_Request) :: request
#else
  integer :: request
#endif
  integer(c_int64_t) :: id
  integer(c_intptr_t) :: base
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  base = transfer(c_loc(field), base)
  id = watch(base, base + 400)
  field = rank
  call MPI_Irecv(field(11), 5, MPI_INTEGER, 1 - rank, 0, MPI_COMM_WORLD, request, error)
  call MPI_Send(field(50), 5, MPI_INTEGER, 1 - rank, 0, MPI_COMM_WORLD, error)
  call MPI_Wait(request, MPI_STATUS_IGNORE, error)
  call MPI_Bcast(field(31), 2, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
  call take(id, c_funloc(note), c_null_ptr)
  call MPI_Finalize(error)
contains
  subroutine note(context, first, last) bind(c)
    type(c_ptr), value :: context
    integer(c_intptr_t), value :: first, last
    if (.not. c_associated(context)) print '(a,i0,a,i0,a,i0)', "rank ", rank, ": ", first - base, " to ", last - base
  end subroutine
end program
