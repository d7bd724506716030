#!/bin/sh
# A C compiler that goes wrong at the invocations whose numbers FAULTY_CC lists, each followed by what it does there:
# " 3:hang 7:crash ". Nothing but builtins until it is the real one, which FAULTY_REAL_CC names.
case " $* " in
*" direct.c "*) ;; # what every kernel needs, and no candidate
*" -c "* | *" -shared "*)
    number=0
    set -C
    until { true >"$FAULTY_NOTES/cc-$number"; } 2>/dev/null; do number=$((number + 1)); done
    case "$FAULTY_CC" in
    *" $number:hang "*) exec sleep 1000 ;;
    *" $number:brood "*)
        sleep 1000 &
        wait
        ;;
    *" $number:spin "*) while :; do :; done ;;
    *" $number:crash "*)
        for out in "$@"; do :; done
        set +C
        echo half >"$out" # the last argument is the output
        kill -SEGV $$
        ;;
    esac
    ;;
esac
exec $FAULTY_REAL_CC "$@"
