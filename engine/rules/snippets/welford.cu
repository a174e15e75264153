//: before
$T $average = $zero, $squares = $zero;
int $count = 0;
//: each
const $T $value = $element;
++$count;
const $T $delta = $value - $average;
$average += $delta / $count;
$squares += $delta * ($value - $average);
//: instead
const $T $moved = $average - $reference;
$target += $open$squares + $count * $moved * $moved$close;
