// Prints the verdict of kstatus, a library of Flux and Helm, on the object on standard input.

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	object := &unstructured.Unstructured{}
	body, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = object.UnmarshalJSON(body)
	}
	if err != nil {
		panic(err)
	}
	result, err := status.Compute(object)
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Status)
}
