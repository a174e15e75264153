//: before
$T $shift = $zero, $offsets = $zero, $squares = $zero;
int $count = 0;
//: each
const $T $value = $element;
if (($count & ($count - 1)) == 0) {  // the mean of the first 1, 2, 4, 8 ... values
    const $T $last = $shift;
    $shift = $count == 0 ? $value : $shift + $offsets / $count;
    const $T $step = $count == 0 ? $zero : $shift - $last, $excess = $step * ($two * $offsets - $count * $step);
    $squares -= $excess < $squares ? $excess : $zero;  // a sum that is infinite stays so
    $offsets -= $count * $step;
}
++$count;
const $T $offset = $value - $shift;
$offsets += $offset;
$squares += $offset * $offset;
//: instead
const $T $moved = $reference - $shift, $less = $moved * ($two * $offsets - $count * $moved);
const $T $taken = $less >= $squares ? $zero : $less;
$target += $open$squares - $taken$close;
