# Runs a function written in Ruby, as AWS' own runtime does: asks the Runtime API for events, calls the handler with
# `event:` and `context:`, and sends its answer. A client of Mayfly's own: AWS' gem aws_lambda_ric is on RubyGems alone,
# which a host need not reach.

require "json"
require "net/http"

$stdout.sync = true
# GEM_PATH, which Lambda sets, hides gems that Debian's packages have, and some that come with Ruby itself.
Gem.paths = { "GEM_PATH" => (Gem.path + Gem.default_path).uniq.join(":") }

# What a handler may ask about its request.
class LambdaContext
  attr_reader :aws_request_id, :invoked_function_arn, :deadline_ms, :identity, :client_context, :tenant_id, :function_name,
              :function_version, :memory_limit_in_mb, :log_group_name, :log_stream_name

  def initialize(request)
    @aws_request_id = request["lambda-runtime-aws-request-id"]
    @invoked_function_arn = request["lambda-runtime-invoked-function-arn"]
    @deadline_ms = request["lambda-runtime-deadline-ms"].to_i
    @tenant_id = request["lambda-runtime-aws-tenant-id"]
    @identity, @client_context = %w[cognito-identity client-context].map do |name|
      text = request["lambda-runtime-#{name}"]
      JSON.parse(text.dup.force_encoding("UTF-8")) if text
    end
    @function_name, @function_version, @memory_limit_in_mb, @log_group_name, @log_stream_name =
      %w[FUNCTION_NAME FUNCTION_VERSION FUNCTION_MEMORY_SIZE LOG_GROUP_NAME LOG_STREAM_NAME].map { |name| ENV["AWS_LAMBDA_#{name}"] }
  end

  def get_remaining_time_in_millis
    [@deadline_ms - Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond), 0].max
  end
end

# A client of the Runtime API; nothing of it is visible to functions by a short name.
module MayflyRuntime
  # Those whose names the header with an error's type may have; it says of all others that they are the function's.
  KNOWN = %w[ArgumentError NoMethodError Exception StandardError NameError LoadError SystemExit SystemStackError].freeze
  FRAMES = 100 # of a stack trace, the most that is reported
  INIT_FAILED = 252 # exit codes of AWS' runtime
  HANDLER_ENDED = 255

  module_function

  def connection
    @connection ||= begin
      host, port = ENV.fetch("AWS_LAMBDA_RUNTIME_API").split(":")
      # Neither a proxy's variables nor patience: the next event may come in an hour, and none is asked for twice.
      client = Net::HTTP.new(host, port.to_i, nil)
      client.read_timeout = client.write_timeout = nil
      client.keep_alive_timeout = 86_400
      client.max_retries = 0
      client.start
    end
  end

  def post(below, body, headers)
    connection.post("/2018-06-01/runtime/#{below}", body, headers)
  end

  # The handler of `FILE.METHOD` or `FILE.CLASS.METHOD`.
  def load_handler(text)
    file, *names, method = text.split(".")
    raise ArgumentError, "Invalid handler #{text}, must be of form FILENAME.METHOD or FILENAME.CLASS.METHOD" if method.nil? || names.size > 1

    root = ENV.fetch("LAMBDA_TASK_ROOT")
    $LOAD_PATH.unshift(root) unless $LOAD_PATH.include?(root)
    require file
    owner = names.empty? ? Kernel : Object.const_get(names.first)
    ->(event, context) { owner.send(method, event: event, context: context) }
  end

  # An error as Lambda reports it, and the header beside it. Frames of this file are none of the function's.
  def report(error, stage)
    frames = (error.backtrace || []).take_while { |frame| !frame.start_with?(__FILE__) }.first(FRAMES)
    message = error.message.to_s.dup.force_encoding("UTF-8").scrub
    body = JSON.generate({ errorMessage: message, errorType: "#{stage}<#{error.class}>", stackTrace: frames })
    kind = KNOWN.include?(error.class.to_s) ? error.class.to_s : "UserException"
    puts "#{stage == "Init" ? "Init error when loading handler #{ENV["_HANDLER"]}" : "Error raised from handler method"}\n#{body}"
    [body, { "Content-Type" => "application/json", "Lambda-Runtime-Function-Error-Type" => "#{stage}<#{kind}>" }]
  end

  # What is sent of a handler's answer, and its type: what can be read is sent as it is.
  def answer_of(value)
    return [value.read, "application/unknown"] if value.respond_to?(:read) && value.respond_to?(:rewind)

    [JSON.generate(value), "application/json"]
  end

  def serve(handler)
    loop do
      request = connection.get("/2018-06-01/runtime/invocation/next")
      raise "the Runtime API answered next with status #{request.code}" unless request.code == "200"

      id = request["lambda-runtime-aws-request-id"]
      ENV["_X_AMZN_TRACE_ID"] = request["lambda-runtime-trace-id"]
      run(handler, id, request)
    end
  end

  def run(handler, id, request)
    event = JSON.parse(request.body.to_s.force_encoding("UTF-8"))
    answer, type = answer_of(handler.call(event, LambdaContext.new(request)))
    post("invocation/#{id}/response", answer, { "Content-Type" => type })
  rescue Exception => error # also what no handler should raise, as `exit` does
    post("invocation/#{id}/error", *report(error, "Function"))
    # A StandardError leaves the process as it was.
    exit!(HANDLER_ENDED) unless error.is_a?(StandardError)
  end

  def main
    handler = load_handler(ENV.fetch("_HANDLER"))
  rescue Exception => error
    post("init/error", *report(error, "Init"))
    exit!(INIT_FAILED)
  else
    serve(handler)
  end
end

MayflyRuntime.main
